"""Tensor names: the hub's are the canonical ones; the fused names that `transformers` saves are cut into them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

VISION_PREFIXES = (
    "vision_tower.",
    "multi_modal_projector.",
    "patch_merge_mlp.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
)
# Parts of a checkpoint that the text model does not read: the tower, and what drafts tokens.
SKIPPED_PREFIXES = (*VISION_PREFIXES, "language_model.model.mtp.", "language_model.model.dspark.")
_PREFIX = "language_model."
# Where KV scales stand in public checkpoints, besides `self_attn.k_scale`.
_KV_SCALE = re.compile(r"\.self_attn\.(?:attn|[kv]_proj)\.([kv]_scale)$")
# `experts.gate_up_proj_scale_inv` (transformers), `experts.gate_up_proj_weight_scale_2` (ModelOpt) and the like.
_FUSED_EXPERTS = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)(?:[._](\w+))?$")
_EXPERT_LINEAR = re.compile(r"(\.experts\.\d+\.)(gate|up|down)_proj\.")
_EXPERT_PARTS = {"gate": "w1", "up": "w3", "down": "w2"}


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


def sources(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, Source]]:
    """(canonical name, source) for every tensor of a checkpoint; a fused tensor yields several.

    A name that fits no pattern is yielded as it is, so that it turns up as surplus.
    """
    for name, shape in shapes.items():
        if name.startswith(SKIPPED_PREFIXES):
            continue
        canonical = _canonical(name)
        fused = _FUSED_EXPERTS.match(canonical)
        if fused and shape:
            yield from _cut_experts(fused[1], fused[2], _part(fused[3]), name, shape)
        elif ".gate_up_proj." in canonical and len(shape) != 2:
            # One scale of both matrices.
            for half in ("gate_proj", "up_proj"):
                yield canonical.replace("gate_up_proj", half), Source(name, shape, _whole)
        elif ".gate_up_proj." in canonical and shape[0] % 2 == 0:
            rows = shape[0] // 2
            for half, start in (("gate_proj", 0), ("up_proj", rows)):
                source = Source(name, (rows, shape[1]), _rows(start, start + rows))
                yield canonical.replace("gate_up_proj", half), source
        else:
            yield canonical, Source(name, shape, _whole)


def _canonical(name: str) -> str:
    """A transformers-saved name in the hub's words; hub names come back unchanged."""
    name = re.sub(r"^(model\.language_model\.|model\.(?=layers\.|embed_tokens\.|norm\.))", _PREFIX + "model.", name)
    name = re.sub(r"^lm_head\.", _PREFIX + "lm_head.", name)
    name = re.sub(r"\.self_attn\.indexer\.([qk])_(proj|norm)\.", r".self_attn.index_\1_\2.", name)
    name = re.sub(r"\.mlp\.(experts\.|shared_experts\.|gate\.(?=weight|e_score))", r".block_sparse_moe.\1", name)
    name = _EXPERT_LINEAR.sub(lambda m: m[1] + _EXPERT_PARTS[m[2]] + ".", name)
    name = _KV_SCALE.sub(r".self_attn.\1", name)
    return name.replace(".block_sparse_moe.gate.e_score", ".block_sparse_moe.e_score")


def _part(suffix: str | None) -> str:
    """The part of a linear that a suffix of a fused expert tensor names."""
    if suffix is None:
        return "weight"
    return suffix if suffix.startswith(("weight", "input")) else f"weight_{suffix}"


def _whole(tensor: Tensor) -> Tensor:
    return tensor


def _rows(start: int, stop: int) -> Callable[[Tensor], Tensor]:
    return lambda t: t[start:stop]


def _expert_rows(expert: int, start: int, stop: int) -> Callable[[Tensor], Tensor]:
    return lambda t: t[expert, start:stop]


def _expert(index: int) -> Callable[[Tensor], Tensor]:
    return lambda t: t[index]


def _cut_experts(
    stem: str, projection: str, part: str, name: str, shape: tuple[int, ...]
) -> Iterator[tuple[str, Source]]:
    """A fused [E, rows, columns] tensor as one matrix an expert, or two (gate rows, then up rows).

    Scales of whole matrices ([E] or [E, 1]) count for both.
    """
    pieces = ("w2",) if projection == "down_proj" else ("w1", "w3")
    for expert in range(shape[0]):
        for number, piece in enumerate(pieces):
            canonical = f"{stem}.{expert}.{piece}.{part}"
            if len(shape) != 3:
                yield canonical, Source(name, shape[1:], _expert(expert))
                continue
            # An odd row belongs to no half: the last piece keeps it, and so is misshapen.
            rows = shape[1] // len(pieces)
            if shape[1] % len(pieces):
                yield canonical, Source(name, shape[1:], _expert(expert))
                continue
            cut = _expert_rows(expert, number * rows, (number + 1) * rows)
            yield canonical, Source(name, (rows, shape[2]), cut)
