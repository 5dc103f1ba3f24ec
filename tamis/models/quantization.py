"""In which format each linear of a checkpoint is stored, as its config says; nothing is guessed from shapes.

Formats: `plain` (bf16, fp32); `mxfp8`; `nvfp4` with ModelOpt's tensor names; `nvfp4-packed`, the same numbers with
compressed-tensors' names, as M3.1 ships its routed experts. Embeddings, head, router and norms are always plain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from tamis.errors import ConfigError
from tamis.models.quantization_names import NamePatterns


class WeightFormat(StrEnum):
    """How a linear's numbers are stored in the checkpoint."""

    PLAIN = "plain"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"
    NVFP4_PACKED = "nvfp4-packed"

    @property
    def packing(self) -> str:
        """How a layer holds it in memory: "plain", "mxfp8" or "nvfp4"."""
        return "nvfp4" if self is WeightFormat.NVFP4_PACKED else str(self)

    @property
    def group(self) -> int:
        """Columns that share a scale; a linear's columns are a multiple of it."""
        return {"plain": 1, "mxfp8": 32, "nvfp4": 16}[self.packing]


@dataclass(frozen=True)
class LayerFormats:
    """Formats of one decoder layer's linears.

    Attributes:
        gate_up_proj, down_proj: of the dense MLP, or of the shared expert.
        experts_gate_up, experts_down: of the routed experts, all alike.
    """

    q_proj: WeightFormat = WeightFormat.PLAIN
    k_proj: WeightFormat = WeightFormat.PLAIN
    v_proj: WeightFormat = WeightFormat.PLAIN
    o_proj: WeightFormat = WeightFormat.PLAIN
    index_q_proj: WeightFormat = WeightFormat.PLAIN
    index_k_proj: WeightFormat = WeightFormat.PLAIN
    gate_up_proj: WeightFormat = WeightFormat.PLAIN
    down_proj: WeightFormat = WeightFormat.PLAIN
    experts_gate_up: WeightFormat = WeightFormat.PLAIN
    experts_down: WeightFormat = WeightFormat.PLAIN


@dataclass(frozen=True)
class Quantization:
    """What a quantization config says.

    Attributes:
        default: format of linears that no rule names; None when every one must be named (MIXED_PRECISION).
        experts: format of the routed experts where it differs from `default`.
        layers: (name or pattern, format): the mixed-precision map.
        ignored: names or patterns of modules that stay plain; they win over everything else.
        kv_cache: format of the KV cache that the checkpoint was made for, "fp8" or "nvfp4"; None when not said.
        source: the file that says it, for messages.
    """

    default: WeightFormat | None = WeightFormat.PLAIN
    experts: WeightFormat | None = None
    layers: tuple[tuple[str, WeightFormat], ...] = ()
    ignored: tuple[str, ...] = ()
    kv_cache: str | None = None
    source: str = "config.json"

    def lookup(self) -> Callable[[str], WeightFormat | None]:
        """A function from a linear's hub name, without `.weight`, to its format; None when no rule covers it."""
        ignored = NamePatterns(self.ignored)
        named, formats = NamePatterns(name for name, _ in self.layers), dict(self.layers)

        def format_of(linear: str) -> WeightFormat | None:
            if ignored.find(linear) is not None:
                return WeightFormat.PLAIN
            entry = named.find(linear)
            if entry is not None:
                return formats[entry]
            return self.experts if self.experts is not None and ".experts." in linear else self.default

        return format_of


@dataclass(frozen=True)
class LayerShape:
    """Which linears a decoder layer has.

    Attributes:
        is_sparse, is_moe: whether it has an index branch, and routed experts.
        num_experts: routed experts.
    """

    is_sparse: bool
    is_moe: bool
    num_experts: int

    def linears(self) -> Iterator[tuple[str, str]]:
        """(field of `LayerFormats`, the linear's hub name inside the layer)."""
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            yield name, f"self_attn.{name}"
        if self.is_sparse:
            for name in ("index_q_proj", "index_k_proj"):
                yield name, f"self_attn.{name}"
        mlp = "block_sparse_moe.shared_experts" if self.is_moe else "mlp"
        for field, part in (("gate_up_proj", "gate_proj"), ("gate_up_proj", "up_proj"), ("down_proj", "down_proj")):
            yield field, f"{mlp}.{part}"
        for expert in range(self.num_experts if self.is_moe else 0):
            for field, part in (("experts_gate_up", "w1"), ("experts_gate_up", "w3"), ("experts_down", "w2")):
                yield field, f"block_sparse_moe.experts.{expert}.{part}"


def uniform_formats(
    default: WeightFormat, experts: WeightFormat, layers: tuple[LayerShape, ...]
) -> tuple[LayerFormats, ...]:
    """One format for the routed experts and one for every other linear."""
    out = []
    for layer in layers:
        names = {field for field, _ in replace(layer, num_experts=1).linears()}
        out.append(LayerFormats(**{n: experts if n.startswith("experts_") else default for n in names}))
    return tuple(out)


def resolve_formats(quantization: Quantization, layers: tuple[LayerShape, ...]) -> tuple[LayerFormats, ...]:
    """The format of every linear.

    Raises:
        ConfigError: a linear that the mixed-precision map does not cover, or two halves of one matrix in memory (gate
            and up, the experts of a layer) in different formats.
    """
    if quantization.default is not None and not (quantization.layers or quantization.ignored):
        return uniform_formats(quantization.default, quantization.experts or quantization.default, layers)
    format_of = quantization.lookup()
    out = []
    for index, layer in enumerate(layers):
        found: dict[str, tuple[str, WeightFormat]] = {}
        for field, name in layer.linears():
            name = f"language_model.model.layers.{index}.{name}"
            stored = format_of(name)
            if stored is None:
                raise ConfigError(
                    f"{quantization.source} has quant_algo MIXED_PRECISION, but neither quantized_layers nor "
                    f"exclude_modules names {name}.",
                    param="quantized_layers",
                    hint="Add it to one of them.",
                )
            other, known = found.setdefault(field, (name, stored))
            if known is not stored:
                raise ConfigError(
                    f"{quantization.source} says {known} for {other}, but {stored} for {name}; they are one matrix in "
                    "memory and must have one format.",
                    param="quantized_layers",
                    hint="Convert the checkpoint: tamis quantize.",
                )
        out.append(LayerFormats(**{field: stored for field, (_, stored) in found.items()}))
    return tuple(out)
