"""Tensor names: the hub's are the canonical ones; the fused names that `transformers` saves are cut into them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from tamis.models.m3 import M3ForCausalLM

# Parts of a multimodal checkpoint that the text model does not read.
SKIPPED_PREFIXES = (
    "vision_tower.",
    "multi_modal_projector.",
    "patch_merge_mlp.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
)
_PREFIX = "language_model."


@dataclass(frozen=True)
class Source:
    """A tensor of the checkpoint, or a slice of a fused one.

    Attributes:
        name: as it stands in the file.
        shape: of the slice.
        cut: takes the slice out of the whole tensor.
    """

    name: str
    shape: tuple[int, ...]
    cut: Callable[[Tensor], Tensor]


def destinations(model: M3ForCausalLM) -> dict[str, Tensor]:
    """Canonical name → the view of a parameter that it fills."""
    out: dict[str, Tensor] = {}
    parameters = {**dict(model.named_parameters(remove_duplicate=True)), **dict(model.named_buffers())}
    for name, parameter in parameters.items():
        out.update(_split_parameter(name, parameter.data))
    if not model.config.use_routing_bias:
        out = {name: view for name, view in out.items() if not name.endswith("e_score_correction_bias")}
    return out


def _split_parameter(name: str, data: Tensor) -> Iterator[tuple[str, Tensor]]:
    if name == "lm_head.weight":
        yield _PREFIX + name, data
        return
    name = _PREFIX + "model." + name
    if ".mlp.experts." in name:
        stem = name.rsplit(".mlp.experts.", 1)[0] + ".block_sparse_moe.experts."
        for expert, matrix in enumerate(data):
            if name.endswith("gate_up_proj"):
                w1, w3 = matrix.chunk(2, dim=0)
                yield f"{stem}{expert}.w1.weight", w1
                yield f"{stem}{expert}.w3.weight", w3
            else:
                yield f"{stem}{expert}.w2.weight", matrix
        return
    name = re.sub(r"\.mlp\.(gate\.|shared_experts\.)", r".block_sparse_moe.\1", name)
    name = name.replace(".block_sparse_moe.gate.e_score", ".block_sparse_moe.e_score")
    if ".gate_up_proj." in name:
        gate, up = data.chunk(2, dim=0)
        yield name.replace(".gate_up_proj.", ".gate_proj."), gate
        yield name.replace(".gate_up_proj.", ".up_proj."), up
        return
    yield name, data


def sources(shapes: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, Source]]:
    """(canonical name, source) for every tensor of a checkpoint; a fused tensor yields several.

    A name that fits no pattern is yielded as it is, so that it turns up as surplus.
    """
    for name, shape in shapes.items():
        if name.startswith(SKIPPED_PREFIXES):
            continue
        canonical = _canonical(name)
        if canonical.endswith((".experts.gate_up_proj", ".experts.down_proj")) and len(shape) == 3:
            yield from _cut_experts(canonical, name, shape)
        elif canonical.endswith(".gate_up_proj.weight") and len(shape) == 2 and shape[0] % 2 == 0:
            half = (shape[0] // 2, shape[1])
            yield canonical.replace(".gate_up_proj.", ".gate_proj."), Source(name, half, _rows(0, half[0]))
            yield canonical.replace(".gate_up_proj.", ".up_proj."), Source(name, half, _rows(half[0], shape[0]))
        else:
            yield canonical, Source(name, shape, lambda t: t)


def _canonical(name: str) -> str:
    """A transformers-saved name in the hub's words; hub names come back unchanged."""
    name = re.sub(r"^(model\.language_model\.|model\.(?=layers\.|embed_tokens\.|norm\.))", _PREFIX + "model.", name)
    name = re.sub(r"^lm_head\.", _PREFIX + "lm_head.", name)
    name = re.sub(r"\.self_attn\.indexer\.([qk])_(proj|norm)\.", r".self_attn.index_\1_\2.", name)
    name = re.sub(r"\.mlp\.(experts\.|shared_experts\.|gate\.(?=weight|e_score))", r".block_sparse_moe.\1", name)
    return name.replace(".block_sparse_moe.gate.e_score", ".block_sparse_moe.e_score")


def _rows(start: int, stop: int) -> Callable[[Tensor], Tensor]:
    return lambda t: t[start:stop]


def _expert_rows(expert: int, start: int, stop: int) -> Callable[[Tensor], Tensor]:
    return lambda t: t[expert, start:stop]


def _cut_experts(canonical: str, name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, Source]]:
    """A fused [E, rows, columns] tensor as one matrix an expert, or two (gate rows, then up rows)."""
    stem, part = canonical.rsplit(".", 1)
    rows, columns = shape[1:]
    pieces = {"w2": (0, rows)} if part == "down_proj" else {"w1": (0, rows // 2), "w3": (rows // 2, rows)}
    for expert in range(shape[0]):
        for piece, (start, stop) in pieces.items():
            source = Source(name, (stop - start, columns), _expert_rows(expert, start, stop))
            yield f"{stem}.{expert}.{piece}.weight", source
