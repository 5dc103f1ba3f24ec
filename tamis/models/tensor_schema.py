"""Every tensor of a text checkpoint by hub name, with its shape and dtypes, from the config alone.

What the loader expects, what the converter writes and what the tests count is this one list.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tamis.errors import ConfigError
from tamis.models.config import M3Config
from tamis.models.quantization import WeightFormat

PREFIX = "language_model.model."
_LABELS = {"plain": "plain", "mxfp8": "MXFP8", "nvfp4": "NVFP4"}
_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "U8": 1}
# What a plain tensor may be stored in, whatever dtype the config names.
_PLAIN = ("BF16", "F16", "F32")
# A matrix's one scale is stored as a scalar, or as a vector of one.
SCALAR: tuple[int, ...] = ()


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a checkpoint.

    Attributes:
        shape: as stored; `SCALAR` also allows [1].
        dtypes: safetensors names that are read; the first is what is written.
        is_required: whether a checkpoint without it is broken.
    """

    shape: tuple[int, ...]
    dtypes: tuple[str, ...]
    is_required: bool = True

    @property
    def num_bytes(self) -> int:
        """Bytes of its values in the first dtype."""
        return math.prod(self.shape) * _BYTES[self.dtypes[0]]

    def __str__(self) -> str:
        return f"{self.dtypes[0]} {list(self.shape)}"


@dataclass(frozen=True)
class LinearSpec:
    """One matrix of the checkpoint: [out_features, in_features].

    Attributes:
        name: hub name without `.weight`.
        format: how it is stored.
        is_routed: whether it belongs to a routed expert.
    """

    name: str
    out_features: int
    in_features: int
    format: WeightFormat
    is_routed: bool = False


def linears(config: M3Config) -> Iterator[LinearSpec]:
    """Every linear of the decoder layers, in the order of the layers."""
    for index, (layer, formats) in enumerate(zip(config.layer_shapes(), config.weight_formats, strict=True)):
        shapes = _shapes(config, config.shared_intermediate_size if layer.is_moe else config.dense_intermediate_size)
        for field, name in layer.linears():
            full = f"{PREFIX}layers.{index}.{name}"
            yield LinearSpec(full, *shapes[field], getattr(formats, field), is_routed=field.startswith("experts_"))


def _shapes(config: M3Config, mlp_width: int) -> dict[str, tuple[int, int]]:
    """(rows, columns) by field of `LayerFormats`; gate and up count apart."""
    hidden, width = config.hidden_size, config.num_heads * config.head_dim
    kv_width = config.num_kv_heads * config.head_dim
    return {
        "q_proj": (width, hidden),
        "k_proj": (kv_width, hidden),
        "v_proj": (kv_width, hidden),
        "o_proj": (hidden, width),
        "index_q_proj": (config.index_num_heads * config.index_head_dim, hidden),
        "index_k_proj": (config.index_head_dim, hidden),
        "gate_up_proj": (mlp_width, hidden),
        "down_proj": (hidden, mlp_width),
        "experts_gate_up": (config.intermediate_size, hidden),
        "experts_down": (hidden, config.intermediate_size),
    }


def linear_tensors(spec: LinearSpec, plain_dtypes: tuple[str, ...] = _PLAIN) -> dict[str, TensorSpec]:
    """Tensor name inside the linear ("weight", …) → spec.

    Raises:
        ConfigError: the columns are no multiple of the format's group.
    """
    rows, columns, group = spec.out_features, spec.in_features, spec.format.group
    if columns % group:
        raise ConfigError(
            f"{spec.name} has {columns} columns, but {spec.format} stores them in groups of {group}.",
            param="quantization_config",
            hint="Leave this linear unquantised.",
        )
    scale = TensorSpec((rows, columns // group), ("F8_E4M3",))
    one, optional = TensorSpec(SCALAR, ("F32",)), TensorSpec(SCALAR, ("F32",), is_required=False)
    packed = TensorSpec((rows, columns // 2), ("U8",))
    match spec.format:
        case WeightFormat.PLAIN:
            return {"weight": TensorSpec((rows, columns), plain_dtypes)}
        case WeightFormat.MXFP8:
            return {
                "weight": TensorSpec((rows, columns), ("F8_E4M3",)),
                "weight_scale_inv": TensorSpec((rows, columns // group), ("U8", "F8_E8M0")),
            }
        case WeightFormat.NVFP4:
            return {"weight": packed, "weight_scale": scale, "weight_scale_2": one, "input_scale": optional}
        case WeightFormat.NVFP4_PACKED:
            return {
                "weight_packed": packed,
                "weight_scale": scale,
                "weight_global_scale": one,
                "input_global_scale": optional,
            }


def plain_tensors(config: M3Config) -> dict[str, TensorSpec]:
    """Everything that is not a linear of a decoder layer: embeddings, head, norms, routers, KV scales."""
    dtypes = _plain_dtypes(config)

    def norm(dim: int) -> TensorSpec:
        return TensorSpec((dim,), dtypes)

    vocabulary = TensorSpec((config.vocab_size, config.hidden_size), dtypes)
    out = {f"{PREFIX}embed_tokens.weight": vocabulary}
    for index, layer in enumerate(config.layer_shapes()):
        stem = f"{PREFIX}layers.{index}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            out[f"{stem}{name}.weight"] = norm(config.hidden_size)
        for name in ("q_norm", "k_norm"):
            out[f"{stem}self_attn.{name}.weight"] = norm(config.head_dim)
        for name in ("index_q_norm", "index_k_norm") if layer.is_sparse else ():
            out[f"{stem}self_attn.{name}.weight"] = norm(config.index_head_dim)
        for name in ("k_scale", "v_scale"):
            out[f"{stem}self_attn.{name}"] = TensorSpec(SCALAR, ("F32", "BF16", "F16"), is_required=False)
        if layer.is_moe:
            router = ("F32", "BF16", "F16")
            out[f"{stem}block_sparse_moe.gate.weight"] = TensorSpec((config.num_experts, config.hidden_size), router)
            if config.use_routing_bias:
                out[f"{stem}block_sparse_moe.e_score_correction_bias"] = TensorSpec((config.num_experts,), router)
    out[f"{PREFIX}norm.weight"] = norm(config.hidden_size)
    if not config.tie_word_embeddings:
        out["language_model.lm_head.weight"] = vocabulary
    return out


def text_tensors(config: M3Config) -> dict[str, TensorSpec]:
    """Every tensor of the text model, plain ones first; about 90,000 of M3.1 (without vision)."""
    out = plain_tensors(config)
    for linear in linears(config):
        for part, spec in linear_tensors(linear, _plain_dtypes(config)).items():
            out[f"{linear.name}.{part}"] = spec
    return out


def describe_formats(config: M3Config) -> str:
    """One line for people: the formats of the linears, the routed experts' apart when theirs differ."""
    experts: dict[str, None] = {}
    others: dict[str, None] = {}
    for layer, formats in zip(config.layer_shapes(), config.weight_formats, strict=True):
        for field, _ in replace(layer, num_experts=1).linears():
            (experts if field.startswith("experts_") else others)[_LABELS[getattr(formats, field).packing]] = None
    if not experts or experts == others:
        return " and ".join(others)
    return f"{' and '.join(others)}, routed experts {' and '.join(experts)}"


def _plain_dtypes(config: M3Config) -> tuple[str, ...]:
    first = "F32" if config.torch_dtype == "float32" else "BF16"
    return (first, *(d for d in _PLAIN if d != first))
