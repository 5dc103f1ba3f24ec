"""The text model's shape and maths, read from config.json in either spelling.

M3's own spelling nests `sparse_attention_config` and `moe_layer_freq`; the one that `transformers` saves has
`layer_types`, `mlp_layer_types` and flat `index_*` keys. Whatever is present and would change the maths in a way
that this implementation does not compute is an error, never a shrug.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tamis.config import BLOCK_TOKENS
from tamis.errors import CheckpointError, ConfigError
from tamis.models.config_keys import IGNORED, KNOWN, KNOWN_SPARSE

ARCHITECTURES = ("MiniMaxM3SparseForConditionalGeneration", "MiniMaxM3VLForConditionalGeneration")
TEXT_ARCHITECTURES = ("MiniMaxM3SparseForCausalLM", "MiniMaxM3VLForCausalLM", "MiniMaxM3VLTextModel")
MODEL_TYPES = ("minimax_m3_vl", "minimax_m3_vl_text", "minimax_m3")


@dataclass(frozen=True, kw_only=True)
class M3Config:
    """Shape and constants of an MSA text model.

    Attributes:
        num_layers … head_dim: as in config.json; `num_heads` query heads share `num_kv_heads` KV heads in groups.
        rotary_dim: leading dims of each head that RoPE turns (NeoX halves).
        moe_layers, sparse_layers: per layer, whether the MLP is a mixture of experts and the attention is MSA.
        intermediate_size, dense_intermediate_size, shared_intermediate_size: of a routed expert, a dense MLP, the
            shared expert.
        topk_blocks: blocks a query reads; `init_blocks` and `local_blocks` of them are forced in.
        torch_dtype: dtype the checkpoint was saved in, "bfloat16" or "float32".
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rotary_dim: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    intermediate_size: int
    dense_intermediate_size: int
    shared_intermediate_size: int
    num_experts: int
    num_experts_per_tok: int
    routed_scaling_factor: float
    use_routing_bias: bool
    swiglu_alpha: float
    swiglu_limit: float
    moe_layers: tuple[bool, ...]
    sparse_layers: tuple[bool, ...]
    index_num_heads: int
    index_head_dim: int
    topk_blocks: int
    init_blocks: int
    local_blocks: int
    torch_dtype: str

    @property
    def group_size(self) -> int:
        """Query heads of one KV head."""
        return self.num_heads // self.num_kv_heads


def read_config(folder: Path, overrides: dict[str, Any] | None = None) -> M3Config:
    """Read `folder`/config.json, merge `overrides` into it and check it.

    Raises:
        CheckpointError: no config.json, or not JSON.
        ConfigError: another architecture, or a value that is not computed here.
    """
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no config.json.", hint="Name a folder with a checkpoint.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not a {type(raw).__name__}.")
    return parse_config(raw, overrides)


def parse_config(raw: dict[str, Any], overrides: dict[str, Any] | None = None) -> M3Config:
    """Turn a config.json object into an `M3Config`; see `read_config` for `overrides` and errors."""
    raw = _override(copy.deepcopy(raw), overrides or {})
    _check_architecture(raw)
    if raw.get("quantization_config"):
        method = raw["quantization_config"].get("quant_method", "unknown")
        raise ConfigError(
            f"config.json has a quantization_config ({method!r}); bfloat16 and float32 weights are supported.",
            param="quantization_config",
            hint="Use the unquantised checkpoint of the same model.",
        )
    text = raw.get("text_config", raw)
    outer = (
        {} if text is raw else {k: v for k, v in raw.items() if k in ("tie_word_embeddings", "torch_dtype", "dtype")}
    )
    return _parse_text({**outer, **text}, flat=text is raw)


def _check_architecture(raw: dict[str, Any]) -> None:
    found = raw.get("architectures") or []
    if any(a in ARCHITECTURES + TEXT_ARCHITECTURES for a in found):
        return
    if not found and raw.get("model_type") in MODEL_TYPES:
        return
    raise ConfigError(
        f"The checkpoint's architecture is {', '.join(found) or raw.get('model_type') or 'not named'}, but Tamis "
        f"serves {', '.join(ARCHITECTURES)}.",
        param="architectures",
        hint="Name a MiniMax-M3 or M3.1 checkpoint.",
    )


def _override(raw: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Merge overrides, into `text_config` where the key lives there; null removes a key."""
    for key, value in overrides.items():
        target = raw
        text = raw.get("text_config")
        if isinstance(text, dict) and key not in ("text_config", "vision_config", "architectures", "model_type"):
            target = text
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
    """After a layer-count override, cut the per-layer lists, or repeat their last entry."""
    sparse = text.get("sparse_attention_config")
    for owner in (text, sparse if isinstance(sparse, dict) else {}):
        for key in (
            "layer_types",
            "mlp_layer_types",
            "moe_layer_freq",
            "sparse_attention_freq",
            "sparse_disable_index_value",
        ):
            entries = owner.get(key)
            if isinstance(entries, list) and entries:
                owner[key] = (entries + entries[-1:] * num_layers)[:num_layers]


class _Reader:
    """Typed access to a JSON object; every complaint names the key, the value and what was expected."""

    def __init__(self, values: dict[str, Any]):
        self.values = values

    def number(self, key: str, kind: type, default: Any = None, *, low: float = 1) -> Any:
        value = self.values.get(key, default)
        if value is None:
            raise ConfigError(f"config.json lacks {key}.", param=key)
        ok = isinstance(value, int | float) and not isinstance(value, bool) and (kind is float or value == int(value))
        if not ok or value < low:
            raise ConfigError(f"config.json has {key} = {value!r}, but it must be at least {low:g}.", param=key)
        return kind(value)

    def only(self, key: str, default: Any, *allowed: Any) -> Any:
        value = self.values.get(key, default)
        if value not in allowed:
            raise ConfigError(
                f"config.json has {key} = {value!r}; the maths is known for {', '.join(map(repr, allowed))} only.",
                param=key,
            )
        return value


def _parse_text(text: dict[str, Any], *, flat: bool) -> M3Config:
    sparse = text.get("sparse_attention_config") or {}
    unknown = sorted(
        [k for k, v in text.items() if k not in KNOWN | IGNORED and v is not None and not (flat and _outer_key(k))]
        + [f"sparse_attention_config.{k}" for k, v in sparse.items() if k not in KNOWN_SPARSE and v is not None]
    )
    if unknown:
        raise ConfigError(
            f"config.json has fields whose effect on the maths is not known here: {', '.join(unknown)}.",
            param=unknown[0],
            hint=f"If they change nothing, drop them: --hf-overrides '{{\"{unknown[0].split('.')[-1]}\": null}}'.",
        )
    read = _Reader(text)
    read.only("scoring_func", "sigmoid", "sigmoid")
    read.only("hidden_act", "swigluoai", "swigluoai", "silu")  # transformers rewrites the name, not the function
    read.only("use_gemma_norm", True, True)
    read.only("use_qk_norm", True, True)
    read.only("qk_norm_type", "per_head", "per_head")
    read.only("norm_topk_prob", True, True)
    read.only("rope_scaling", None, None)
    read.only("sliding_window", None, None)
    for key in ("attention_bias", "mlp_bias", "attention_output_gate"):
        read.only(key, False, False)
    for key in ("n_group", "topk_group"):
        read.only(key, 1, 1, None)
    for key in ("n_shared_experts", "num_shared_experts"):
        read.only(key, 1, 1)

    num_layers = read.number("num_hidden_layers", int)
    num_heads = read.number("num_attention_heads", int)
    num_kv_heads = read.number("num_key_value_heads", int)
    if num_heads % num_kv_heads:
        raise ConfigError(
            f"config.json has num_attention_heads = {num_heads}, not a multiple of its {num_kv_heads} KV heads.",
            param="num_attention_heads",
        )
    head_dim = read.number("head_dim", int, 128)
    if head_dim % 16:
        raise ConfigError(f"config.json has head_dim = {head_dim}, but rows need a multiple of 16.", param="head_dim")
    rope_theta, rotary_dim = _rope(read, text, head_dim)
    experts = text.get("num_local_experts", text.get("num_experts", text.get("n_routed_experts")))
    read.values = {**text, "num_local_experts": experts if experts is not None else 128}
    num_experts = read.number("num_local_experts", int)
    top_k = read.number("num_experts_per_tok", int, 4)
    if top_k > num_experts:
        raise ConfigError(
            f"config.json has num_experts_per_tok = {top_k}, more than its {num_experts} experts.",
            param="num_experts_per_tok",
        )
    index = _index(text, sparse, num_kv_heads, num_layers)
    moe_layers = _layer_flags(
        num_layers,
        ("mlp_layer_types", text.get("mlp_layer_types")),
        "sparse",
        "dense",
        ("moe_layer_freq", text.get("moe_layer_freq")),
    )
    return M3Config(
        vocab_size=read.number("vocab_size", int),
        hidden_size=read.number("hidden_size", int),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=read.number("rms_norm_eps", float, 1e-6, low=0),
        rope_theta=rope_theta,
        rotary_dim=rotary_dim,
        max_position_embeddings=read.number("max_position_embeddings", int, 524288),
        tie_word_embeddings=bool(text.get("tie_word_embeddings", False)),
        intermediate_size=read.number("intermediate_size", int),
        dense_intermediate_size=read.number("dense_intermediate_size", int, 12288),
        shared_intermediate_size=read.number("shared_intermediate_size", int, 3072),
        num_experts=num_experts,
        num_experts_per_tok=top_k,
        routed_scaling_factor=read.number("routed_scaling_factor", float, 2.0, low=0),
        use_routing_bias=bool(text.get("use_routing_bias", True)),
        swiglu_alpha=read.number("swiglu_alpha", float, 1.702, low=0),
        swiglu_limit=read.number("swiglu_limit", float, 7.0, low=0),
        moe_layers=moe_layers if moe_layers is not None else (True,) * num_layers,
        torch_dtype=_dtype(text),
        **index,
    )


def _outer_key(key: str) -> bool:
    return key in (
        "image_token_index",
        "video_token_index",
        "projector_hidden_size",
        "vision_config",
        "merged_hidden_size",
    )


def _dtype(text: dict[str, Any]) -> str:
    name = str(text.get("dtype") or text.get("torch_dtype") or "bfloat16")
    if name not in ("bfloat16", "float32"):
        raise ConfigError(f"config.json has dtype = {name!r}; weights must be bfloat16 or float32.", param="dtype")
    return name


def _rope(read: _Reader, text: dict[str, Any], head_dim: int) -> tuple[float, int]:
    """(theta, rotary dims). Both spellings may state the dims; they must agree."""
    parameters = text.get("rope_parameters") or {}
    if parameters.get("rope_type", "default") != "default":
        raise ConfigError(
            f"config.json has rope_type = {parameters['rope_type']!r} in rope_parameters, but only 'default' is known.",
            param="rope_parameters",
        )
    theta = parameters.get("rope_theta", text.get("rope_theta", 5_000_000.0))
    factor = parameters.get("partial_rotary_factor", text.get("partial_rotary_factor"))
    stated = text.get("rotary_dim")
    from_factor = None if factor is None else int(head_dim * factor)
    if stated is not None and from_factor is not None and stated != from_factor:
        raise ConfigError(
            f"config.json has rotary_dim = {stated}, but partial_rotary_factor = {factor} of head_dim {head_dim} "
            f"gives {from_factor}.",
            param="rotary_dim",
            hint="Set the right one with --hf-overrides.",
        )
    rotary_dim = stated if stated is not None else from_factor if from_factor is not None else min(64, head_dim)
    if not isinstance(rotary_dim, int) or rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise ConfigError(
            f"config.json has rotary_dim = {rotary_dim!r}, but it must be even and at most head_dim ({head_dim}).",
            param="rotary_dim",
        )
    return float(theta), rotary_dim


def _layer_flags(
    num_layers: int, names: tuple[str, list[Any] | None], on: str, off: str, frequencies: tuple[str, list[Any] | None]
) -> tuple[bool, ...] | None:
    """Per-layer booleans from (key, list of names) or, in M3's own spelling, (key, list of 0/1); None if neither."""
    key, entries = names if names[1] is not None else frequencies
    values: dict[Any, bool] = {on: True, off: False} if names[1] is not None else {1: True, 0: False}
    if entries is None:
        return None
    if not isinstance(entries, list) or len(entries) != num_layers:
        size = len(entries) if isinstance(entries, list) else repr(entries)
        raise ConfigError(f"config.json has {size} entries in {key}, but {num_layers} layers.", param=key)
    bad = [e for e in entries if isinstance(e, list | dict) or e not in values]
    if bad:
        raise ConfigError(
            f"config.json has {bad[0]!r} in {key}, but entries must be one of {', '.join(map(repr, values))}.",
            param=key,
        )
    return tuple(values[e] for e in entries)


def _index(text: dict[str, Any], sparse: dict[str, Any], num_kv_heads: int, num_layers: int) -> dict[str, Any]:
    """The index branch, from nested or flat keys."""
    merged = _Reader(
        {
            flat: sparse.get(nested, text.get(flat))
            for flat, nested in {
                "index_n_heads": "sparse_num_index_heads",
                "index_head_dim": "sparse_index_dim",
                "index_block_size": "sparse_block_size",
                "index_topk_blocks": "sparse_topk_blocks",
                "index_init_blocks": "sparse_init_block",
                "index_local_blocks": "sparse_local_block",
            }.items()
            if sparse.get(nested, text.get(flat)) is not None
        }
    )
    flags = (
        _layer_flags(
            num_layers,
            ("layer_types", text.get("layer_types")),
            "minimax_m3_sparse",
            "full_attention",
            ("sparse_attention_freq", sparse.get("sparse_attention_freq")),
        )
        or (False,) * num_layers
    )
    _Reader(sparse).only("sparse_score_type", "max", "max")
    _Reader(sparse).only("use_sparse_attention", True, True)
    merged.only("index_block_size", BLOCK_TOKENS, BLOCK_TOKENS)
    disable_value = sparse.get("sparse_disable_index_value")
    if isinstance(disable_value, list) and any(s and not d for s, d in zip(flags, disable_value, strict=False)):
        raise ConfigError(
            "config.json enables an index value branch (sparse_disable_index_value is 0 on a sparse layer), which is "
            "not part of this model.",
            param="sparse_disable_index_value",
        )
    heads = merged.number("index_n_heads", int, num_kv_heads)
    if any(flags) and heads != num_kv_heads:
        raise ConfigError(
            f"config.json has index_n_heads = {heads}, but each of the {num_kv_heads} KV heads needs one.",
            param="index_n_heads",
        )
    dim = merged.number("index_head_dim", int, 128)
    topk = merged.number("index_topk_blocks", int, 16)
    init = merged.number("index_init_blocks", int, 0, low=0)
    local = merged.number("index_local_blocks", int, 1, low=0)
    if dim % 16:
        raise ConfigError(
            f"config.json has index_head_dim = {dim}, but rows need a multiple of 16.", param="index_head_dim"
        )
    if init + local > topk:
        raise ConfigError(
            f"config.json has index_topk_blocks = {topk}, under the {init} first and {local} last blocks it forces.",
            param="index_topk_blocks",
        )
    return {
        "sparse_layers": flags,
        "index_num_heads": heads,
        "index_head_dim": dim,
        "topk_blocks": topk,
        "init_blocks": init,
        "local_blocks": local,
    }
