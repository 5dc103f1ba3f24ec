"""The text model's shape and maths, read from config.json in either spelling.

M3's own spelling nests `sparse_attention_config` and `moe_layer_freq`; the one that `transformers` saves has
`layer_types`, `mlp_layer_types` and flat `index_*` keys. Whatever is present and would change the maths in a way
that this implementation does not compute is an error, never a shrug.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tamis.config import BLOCK_TOKENS
from tamis.errors import CheckpointError, ConfigError
from tamis.models.config_keys import IGNORED, KNOWN, KNOWN_ROPE, KNOWN_SPARSE
from tamis.models.config_overrides import apply_overrides
from tamis.models.config_reader import Reader, agreed
from tamis.models.quantization import LayerFormats, LayerShape, WeightFormat, uniform_formats
from tamis.models.quantization_reader import stated_formats

ARCHITECTURES = ("MiniMaxM3SparseForConditionalGeneration", "MiniMaxM3VLForConditionalGeneration")
TEXT_ARCHITECTURES = ("MiniMaxM3SparseForCausalLM", "MiniMaxM3VLForCausalLM", "MiniMaxM3VLTextModel")
MODEL_TYPES = ("minimax_m3_vl", "minimax_m3_vl_text", "minimax_m3")
# Outer keys of these parts say nothing about the text model.
_OTHER_PARTS = re.compile(r"vision|image|img|video|media|patch|projector|multimodal|mm_|audio|merged_hidden_size")
_OUTER_TEXT_KEYS = ("tie_word_embeddings", "torch_dtype", "dtype")
QUANTIZATION_FILE = "hf_quant_config.json"


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
        torch_dtype: dtype the checkpoint's plain tensors were saved in, "bfloat16" or "float32".
        weight_formats: per layer, how its linears are stored (as a model is built from it: how they are held).
        kv_cache_format: cache format that the checkpoint asks for, "fp8" or "nvfp4"; None when it asks for none.
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
    weight_formats: tuple[LayerFormats, ...]
    kv_cache_format: str | None = None

    @property
    def is_quantized(self) -> bool:
        """Whether any linear is stored in a packed format."""
        return any(formats != LayerFormats() for formats in self.weight_formats)

    @property
    def is_m31(self) -> bool:
        """Whether routed experts are packed as only M3.1 ships them: such a model was trained with an NVFP4 cache."""
        return any(formats.experts_down is WeightFormat.NVFP4_PACKED for formats in self.weight_formats)

    def layer_shapes(self) -> tuple[LayerShape, ...]:
        """Which linears each layer has."""
        return tuple(
            LayerShape(sparse, moe, self.num_experts)
            for sparse, moe in zip(self.sparse_layers, self.moe_layers, strict=True)
        )

    def with_formats(self, default: WeightFormat, experts: WeightFormat) -> M3Config:
        """The same model with one format for the routed experts and one for every other linear."""
        return dataclasses.replace(self, weight_formats=uniform_formats(default, experts, self.layer_shapes()))


def read_config(folder: Path, overrides: dict[str, Any] | None = None) -> M3Config:
    """Read `folder`/config.json, merge `overrides` into it and check it; hf_quant_config.json too, when it is there.

    Raises:
        CheckpointError: no config.json, or not JSON.
        ConfigError: another architecture, or a value that is not computed here.
    """
    raw = read_json(folder / "config.json")
    if raw is None:
        raise CheckpointError(f"{folder} has no config.json.", hint="Name a folder with a checkpoint.")
    return parse_config(raw, overrides, read_json(folder / QUANTIZATION_FILE))


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object; None when there is no such file."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.", hint="Download it again.") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}.", hint="Download it again.") from None
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not a {type(raw).__name__}.")
    return raw


def parse_config(
    raw: dict[str, Any], overrides: dict[str, Any] | None = None, quantization: dict[str, Any] | None = None
) -> M3Config:
    """Turn a config.json object into an `M3Config`.

    Args:
        raw, overrides: see `read_config`.
        quantization: hf_quant_config.json, where ModelOpt keeps the formats.
    """
    outer = Reader(apply_overrides(raw, overrides or {}))
    _check_architecture(outer)
    if "text_config" not in outer.values:
        _check_known(outer, KNOWN | {"quantization_config"}, but=_OTHER_PARTS)
        return _with_formats(_parse_text(outer), outer, quantization)
    _check_known(outer, frozenset({"text_config", "quantization_config", *_OUTER_TEXT_KEYS}), but=_OTHER_PARTS)
    text = Reader(outer.get("text_config"), "text_config")
    _check_known(text, KNOWN | {"quantization_config"})
    shared = {key: outer.get(key) for key in _OUTER_TEXT_KEYS if outer.get(key) is not None}
    return _with_formats(_parse_text(Reader({**shared, **text.values})), outer, quantization)


def _with_formats(config: M3Config, outer: Reader, quantization: dict[str, Any] | None) -> M3Config:
    """Add what config.json, or the file beside it, says of weight formats."""
    stated = [r for r in (outer, outer.child("text_config")) if r.get("quantization_config") is not None]
    found = [r.child("quantization_config") for r in stated]
    beside = Reader(quantization, file=QUANTIZATION_FILE) if quantization is not None else None
    formats, cache = stated_formats(found, beside, config.layer_shapes())
    return dataclasses.replace(config, weight_formats=formats, kv_cache_format=cache)


def _check_architecture(outer: Reader) -> None:
    found = outer.get("architectures") or []
    if not isinstance(found, list):
        raise outer.refuse("architectures", "a list of names")
    if any(a in ARCHITECTURES + TEXT_ARCHITECTURES for a in found):
        return
    if not found and outer.get("model_type") in MODEL_TYPES:
        return
    named = ", ".join(map(str, found)) or outer.get("model_type") or "not named"
    raise ConfigError(
        f"config.json has architectures = {named}, but Tamis serves {', '.join(ARCHITECTURES)}.",
        param="architectures",
        hint="Name a MiniMax-M3 or M3.1 checkpoint.",
    )


def _check_known(read: Reader, known: frozenset[str], but: re.Pattern[str] | None = None) -> None:
    """Refuse keys of which nobody here knows whether they change the maths."""
    unknown = [
        key
        for key, value in read.values.items()
        if value is not None and key not in known | IGNORED and not (but is not None and but.search(key))
    ]
    if not unknown:
        return
    parent = read.name("").removeprefix("text_config").strip(".")
    override: dict[str, Any] = {unknown[0]: None}
    if parent:
        override = {parent: override}
    raise ConfigError(
        f"config.json has fields whose effect on the maths is not known here: {', '.join(map(read.name, unknown))}.",
        param=unknown[0],
        hint=f"If they change nothing, drop them: --hf-overrides '{json.dumps(override)}'.",
    )


def _parse_text(read: Reader) -> M3Config:
    read.only("scoring_func", "sigmoid")
    read.only("hidden_act", "swigluoai", "silu")  # transformers rewrites the name, not the function
    read.only("qk_norm_type", "per_head")
    for key in ("use_gemma_norm", "use_qk_norm", "norm_topk_prob"):
        read.only(key, True)
    for key in ("attention_bias", "mlp_bias", "attention_output_gate"):
        read.only(key, False)
    for key in ("n_group", "topk_group", "n_shared_experts", "num_shared_experts"):
        read.only(key, 1)
    for key in ("rope_scaling", "sliding_window"):
        read.only(key)
    read.only("rope_type", "default")

    num_layers = read.integer("num_hidden_layers")
    num_heads = read.integer("num_attention_heads")
    num_kv_heads = read.integer("num_key_value_heads")
    if num_heads % num_kv_heads:
        raise read.refuse("num_attention_heads", f"a multiple of num_key_value_heads ({num_kv_heads})")
    head_dim = read.integer("head_dim", 128)
    if head_dim % 16:
        raise read.refuse("head_dim", "a multiple of 16, as rows need it")
    rope_theta, rotary_dim = _rope(read, head_dim)
    experts = agreed(*((key, read.get(key)) for key in ("num_local_experts", "num_experts", "n_routed_experts")))
    num_experts = Reader({"num_local_experts": experts}).integer("num_local_experts", 128)
    top_k = read.integer("num_experts_per_tok", 4)
    if top_k > num_experts:
        raise read.refuse("num_experts_per_tok", f"at most the number of experts ({num_experts})")
    moe_layers = agreed(
        ("mlp_layer_types", _layer_flags(read, "mlp_layer_types", num_layers, {"sparse": True, "dense": False})),
        ("moe_layer_freq", _layer_flags(read, "moe_layer_freq", num_layers, {1: True, 0: False})),
    )
    dtype = agreed(("dtype", read.get("dtype")), ("torch_dtype", read.get("torch_dtype"))) or "bfloat16"
    if dtype not in ("bfloat16", "float32"):
        raise ConfigError(f"config.json has dtype = {dtype!r}; weights must be bfloat16 or float32.", param="dtype")
    return M3Config(
        vocab_size=read.integer("vocab_size"),
        hidden_size=read.integer("hidden_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=read.number("rms_norm_eps", 1e-6),
        rope_theta=rope_theta,
        rotary_dim=rotary_dim,
        max_position_embeddings=read.integer("max_position_embeddings", 524288),
        tie_word_embeddings=read.boolean("tie_word_embeddings", False),
        intermediate_size=read.integer("intermediate_size"),
        dense_intermediate_size=read.integer("dense_intermediate_size", 12288),
        shared_intermediate_size=read.integer("shared_intermediate_size", 3072),
        num_experts=num_experts,
        num_experts_per_tok=top_k,
        routed_scaling_factor=read.number("routed_scaling_factor", 2.0),
        use_routing_bias=read.boolean("use_routing_bias", True),
        swiglu_alpha=read.number("swiglu_alpha", 1.702),
        swiglu_limit=read.number("swiglu_limit", 7.0),
        moe_layers=moe_layers if moe_layers is not None else (True,) * num_layers,
        torch_dtype=dtype,
        weight_formats=(LayerFormats(),) * num_layers,
        **_index(read, num_kv_heads, num_layers),
    )


def _rope(read: Reader, head_dim: int) -> tuple[float, int]:
    """(theta, rotary dims). Several keys may state each; they must agree."""
    rope = read.child("rope_parameters")
    _check_known(rope, KNOWN_ROPE)
    rope.only("rope_type", "default")
    rope.only("type", "default")
    theta = agreed(("rope_theta", read.get("rope_theta")), (rope.name("rope_theta"), rope.get("rope_theta")))
    theta = Reader({"rope_theta": theta}).number("rope_theta", 5e6, low=1.0)
    factors = [(r.name("partial_rotary_factor"), r) for r in (read, rope) if r.get("partial_rotary_factor") is not None]
    stated = read.integer("rotary_dim") if read.get("rotary_dim") is not None else None
    rotary_dim = agreed(
        ("rotary_dim", stated),
        *((f"{name} × head_dim", int(r.number("partial_rotary_factor") * head_dim)) for name, r in factors),
    )
    if rotary_dim is None:
        rotary_dim = min(64, head_dim)
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise ConfigError(
            f"config.json has rotary_dim = {rotary_dim}, but it must be even and at most head_dim ({head_dim}).",
            param="rotary_dim",
        )
    return theta, rotary_dim


def _layer_flags(read: Reader, key: str, num_layers: int, values: dict[Any, bool]) -> tuple[bool, ...] | None:
    """Per-layer booleans of a list of names or of 0/1; None when it is not there."""
    entries = read.get(key)
    if entries is None:
        return None
    if not isinstance(entries, list) or len(entries) != num_layers:
        raise read.refuse(key, f"a list of {num_layers} entries, one a layer")
    bad = [e for e in entries if isinstance(e, list | dict) or e not in values]
    if bad:
        raise ConfigError(
            f"config.json has {bad[0]!r} in {read.name(key)}, but entries must be {', '.join(map(repr, values))}.",
            param=key,
        )
    return tuple(values[e] for e in entries)


def _index(read: Reader, num_kv_heads: int, num_layers: int) -> dict[str, Any]:
    """The index branch, from nested or flat keys."""
    sparse = read.child("sparse_attention_config")
    _check_known(sparse, KNOWN_SPARSE)
    sparse.only("sparse_score_type", "max")
    sparse.only("use_sparse_attention", True)
    names = {"minimax_m3_sparse": True, "full_attention": False}
    flags = agreed(
        ("layer_types", _layer_flags(read, "layer_types", num_layers, names)),
        ("sparse_attention_freq", _layer_flags(sparse, "sparse_attention_freq", num_layers, {1: True, 0: False})),
    )
    if flags is None and sparse.values:
        # Dense attention on an MSA model is another function: never a default.
        raise ConfigError(
            "config.json has a sparse_attention_config without sparse_attention_freq: which layers are sparse is open.",
            param="sparse_attention_freq",
            hint="Add it (0 or 1 a layer), or layer_types.",
        )
    flags = flags if flags is not None else (False,) * num_layers
    disabled = _layer_flags(sparse, "sparse_disable_index_value", num_layers, {1: True, 0: False})
    if disabled is not None and any(s and not d for s, d in zip(flags, disabled, strict=True)):
        raise ConfigError(
            "config.json enables an index value branch (sparse_disable_index_value is 0 on a sparse layer), which is "
            "not part of this model.",
            param="sparse_disable_index_value",
        )
    index = Reader(
        {
            flat: agreed((flat, read.get(flat)), (sparse.name(nested), sparse.get(nested)))
            for flat, nested in {
                "index_n_heads": "sparse_num_index_heads",
                "index_head_dim": "sparse_index_dim",
                "index_block_size": "sparse_block_size",
                "index_topk_blocks": "sparse_topk_blocks",
                "index_init_blocks": "sparse_init_block",
                "index_local_blocks": "sparse_local_block",
            }.items()
        }
    )
    index.only("index_block_size", BLOCK_TOKENS)
    heads = index.integer("index_n_heads", num_kv_heads)
    if any(flags) and heads != num_kv_heads:
        raise index.refuse("index_n_heads", f"the number of KV heads ({num_kv_heads}), one each")
    dim = index.integer("index_head_dim", 128)
    if dim % 16:
        raise index.refuse("index_head_dim", "a multiple of 16, as rows need it")
    topk = index.integer("index_topk_blocks", 16)
    init = index.integer("index_init_blocks", 0, low=0)
    local = index.integer("index_local_blocks", 1, low=0)
    if init + local > topk:
        raise index.refuse("index_topk_blocks", f"at least the {init} first and {local} last blocks that are forced in")
    return {
        "sparse_layers": flags,
        "index_num_heads": heads,
        "index_head_dim": dim,
        "topk_blocks": topk,
        "init_blocks": init,
        "local_blocks": local,
    }
