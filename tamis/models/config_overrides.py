"""`--hf-overrides`: a JSON object merged into config.json before it is read."""

from __future__ import annotations

import copy
from typing import Any

_OUTER_KEYS = ("text_config", "vision_config", "architectures", "model_type", "quantization_config")
_LAYER_LISTS = (
    "layer_types",
    "mlp_layer_types",
    "moe_layer_freq",
    "sparse_attention_freq",
    "sparse_disable_index_value",
)


def apply_overrides(raw: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """A copy of `raw` with overrides: each goes where its key stands already, a new one into `text_config`.

    null removes a key; objects are merged. After a new `num_hidden_layers` the per-layer lists are cut, or their last
    entry is repeated.
    """
    raw = copy.deepcopy(raw)
    for key, value in overrides.items():
        text = raw.get("text_config")
        in_text = isinstance(text, dict) and key not in _OUTER_KEYS and (key in text or key not in raw)
        target = text if isinstance(text, dict) and in_text else raw
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict) and isinstance(target.get(key), dict):
            target[key] = {k: v for k, v in {**target[key], **value}.items() if v is not None}
        else:
            target[key] = value
        if key == "num_hidden_layers" and isinstance(value, int) and value > 0:
            _fit_layer_lists(target, value)
    return raw


def _fit_layer_lists(text: dict[str, Any], num_layers: int) -> None:
    sparse = text.get("sparse_attention_config")
    for owner in (text, sparse if isinstance(sparse, dict) else {}):
        for key in _LAYER_LISTS:
            entries = owner.get(key)
            if isinstance(entries, list) and entries:
                owner[key] = (entries + entries[-1:] * num_layers)[:num_layers]
