"""Convert a checkpoint between formats, shard by shard: `tamis quantize`.

Linears of the decoder layers change their format; embeddings, head, norms and routers keep their values and dtypes,
and everything that is no part of the text model is copied as it is. Codes are kept wherever source and target share a
packing: MXFP8 stays MXFP8, and NVFP4 goes between its two layouts bit for bit. MXFP8 to bf16 is exact.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tamis.errors import CheckpointError, ConfigError
from tamis.kernels.packed_weight import (
    MXFP8Weight,
    NVFP4Weight,
    PackedWeight,
    Weight,
    dense,
    quantize_mxfp8,
    quantize_nvfp4,
)
from tamis.models.config import QUANTIZATION_FILE, M3Config, read_config, read_json
from tamis.models.quantization import WeightFormat
from tamis.models.quantization_writer import TARGETS, hf_quant_config, quantization_config
from tamis.models.tensor_schema import SCALAR, LinearSpec, TensorSpec, linear_tensors, linears
from tamis.runner.checkpoint import Checkpoint
from tamis.runner.conversion_folder import ConversionFolder
from tamis.runner.names import VISION_PREFIXES
from tamis.runner.packing import INPUT_SCALES, as_factor, pack_parts
from tamis.runner.weights import read_kv_scales

DEFAULT_SHARD_BYTES = 5_000_000_000
_PACKINGS: dict[str, type[PackedWeight]] = {"mxfp8": MXFP8Weight, "nvfp4": NVFP4Weight}
# What a checkpoint of this family has beside its weights. A card is not among it: it speaks of the source's files.
_COPIED = (
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.*",
    "*processor_config.json",
    *("configuration_*.py", "modeling_*.py", "tokenization_*.py", "*process*.py"),
    "LICENSE*",
    "NOTICE*",
)
_WRITTEN_HERE = ("config.json", QUANTIZATION_FILE, "model.safetensors.index.json")


@dataclass(frozen=True)
class Conversion:
    """What a conversion did.

    Attributes:
        num_shards, num_reused: files of weights, and how many were there already.
        num_tensors, num_bytes: of the new checkpoint.
        left_out: entries of the source folder that were not copied.
    """

    num_shards: int
    num_reused: int
    num_tensors: int
    num_bytes: int
    left_out: tuple[str, ...]


def convert(
    source: Path,
    folder: Path,
    target: str,
    *,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    progress: Callable[[str, int], None],
) -> Conversion:
    """Write `source` in another format into `folder`. Holds one shard in memory.

    Args:
        source: a checkpoint in any format that loads.
        folder: empty, or of the same conversion: its finished shards are kept.
        target: "m3.1", "modelopt", "mxfp8" or "bf16".
        shard_bytes: most bytes of tensors in a file, unless one linear alone has more.
        progress: called with ("converting", percent of bytes).

    Raises:
        CheckpointError, ConfigError: a source that does not load, a folder that holds something else, too little disk.
    """
    config = read_config(source)
    stored = Checkpoint(source, config)
    read_kv_scales(stored)  # refuses those that would not load again
    wanted = config.with_formats(*reversed(TARGETS[target]))
    plan = _plan(stored, wanted, shard_bytes)
    settings = {"format": target, "shard_bytes": shard_bytes}
    out = ConversionFolder(folder, source, stored.shards.files, settings)
    total = sum(shard.num_bytes for shard in plan)
    done = num_reused = 0
    _check_disk(folder, [s.num_bytes for s in plan if not (folder / s.file).is_file()])
    specs = {spec.name: spec for spec in linears(wanted)}
    for shard in plan:
        if out.has(shard.file, shard.shapes):
            num_reused += 1
        else:
            tensors: dict[str, Tensor] = {}
            for number, unit in enumerate(shard.units):
                tensors |= _convert_unit(stored, unit, specs.get(unit))
                within = shard.num_bytes * (number + 1) // len(shard.units)
                progress("converting", 100 * (done + within) // total)
            out.write_shard(shard.file, tensors)
        done += shard.num_bytes
        progress("converting", 100 * done // total)
    if len(plan) > 1:
        weight_map = {name: shard.file for shard in plan for name in shard.shapes}
        out.write_json("model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})
    left_out = _copy_files(source, out)
    _write_configs(out, source, config, stored, target, specs.values())
    return Conversion(len(plan), num_reused, sum(len(s.shapes) for s in plan), total, left_out)


@dataclass(frozen=True)
class _Shard:
    file: str
    units: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]
    num_bytes: int


def _plan(stored: Checkpoint, wanted: M3Config, shard_bytes: int) -> list[_Shard]:
    """Which tensors go into which file: in the source's order, a linear's tensors together."""
    specs = {spec.name: spec for spec in linears(wanted)}
    groups: list[list[tuple[str, dict[str, tuple[int, ...]], int]]] = [[]]
    for unit in (*stored.in_file_order(), *stored.skipped):
        if unit in specs:
            parts = {f"{unit}.{part}": spec for part, spec in _written(specs[unit]).items()}
            shapes, size = {n: p.shape for n, p in parts.items()}, sum(p.num_bytes for p in parts.values())
        else:
            shape, dtype_bytes = stored.layout(unit)
            shapes, size = {unit: shape}, math.prod(shape) * dtype_bytes
        if groups[-1] and sum(g[2] for g in groups[-1]) + size > shard_bytes:
            groups.append([])
        groups[-1].append((unit, shapes, size))
    files = [f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors" for i in range(len(groups))]
    return [
        _Shard(
            file if len(groups) > 1 else "model.safetensors",
            tuple(unit for unit, _, _ in group),
            {name: shape for _, shapes, _ in group for name, shape in shapes.items()},
            sum(size for _, _, size in group),
        )
        for file, group in zip(files, groups, strict=True)
    ]


def _written(spec: LinearSpec) -> dict[str, TensorSpec]:
    return linear_tensors(spec, ("BF16",))


def _convert_unit(stored: Checkpoint, unit: str, spec: LinearSpec | None) -> dict[str, Tensor]:
    """The output tensors of a linear, or of one other tensor."""
    if unit in stored.skipped:
        return {unit: stored.shards.read(unit)}
    if spec is None:
        tensor = stored.read(unit)
        _check_finite(unit, tensor)
        return {unit: tensor}
    source = stored.read_linear(unit)
    if isinstance(source, Tensor) or _may_overflow(source):
        _check_finite(f"{unit}.weight", dense(source, torch.float32))
    weight = repack(source, spec.format)
    if isinstance(weight, Tensor):
        _check_finite(f"{unit}.weight in bf16", weight)
    input_scale = _input_scale(stored, unit) if spec.format in INPUT_SCALES else torch.ones(())
    parts = pack_parts(spec.format, weight, input_scale)
    if stored.linears[unit].format is spec.format:
        # Scales of the whole matrix as they stand: a reciprocal's reciprocal may be another number.
        kept, written = stored.parts(unit), _written(spec)
        parts |= {part: tensor.reshape(()) for part, tensor in kept.items() if written[part].shape == SCALAR}
    return {f"{unit}.{part}": tensor for part, tensor in parts.items()}


def _may_overflow(weight: PackedWeight) -> bool:
    """Whether a code times its scales could be over fp32's range; to say no, nothing is unpacked."""
    if isinstance(weight, MXFP8Weight):
        return bool(weight.scales.max() > 127 + 119)  # 448 · 2^119 is the largest power that fits
    assert isinstance(weight, NVFP4Weight)
    return not bool(torch.isfinite(6.0 * weight.scales.float().abs().max() * weight.row_scales.max()))


def _check_finite(name: str, values: Tensor) -> None:
    if not bool(torch.isfinite(values).all()):
        raise CheckpointError(
            f"{name} holds a value that is no finite number.", param=name, hint="Download the source again."
        )


def repack(weight: Weight, target: WeightFormat) -> Weight:
    """One matrix in the packing of `target`: itself when it has it already, else quantised anew or unpacked to bf16."""
    if target is WeightFormat.PLAIN:
        return dense(weight, torch.bfloat16)
    if isinstance(weight, _PACKINGS[target.packing]):
        return weight
    values = dense(weight, torch.float32)
    return quantize_mxfp8(values) if target is WeightFormat.MXFP8 else _stable(quantize_nvfp4(values))


def _stable(weight: NVFP4Weight) -> NVFP4Weight:
    """The weight with its global scale moved by at most a few last places, to one that is its reciprocal's reciprocal.

    So a conversion to the layout that stores the reciprocal, and back, changes nothing.
    """
    factor = weight.row_scales[0]
    while not torch.equal(1.0 / (1.0 / factor), factor):
        factor = 1.0 / (1.0 / factor)
    return NVFP4Weight(weight.codes, weight.scales, factor.expand_as(weight.row_scales).contiguous())


def _input_scale(stored: Checkpoint, linear: str) -> Tensor:
    """The activations' scale as a factor; 1 when the source has none."""
    layout = stored.linears[linear].format
    part = INPUT_SCALES.get(layout)
    found = stored.parts(linear).get(part) if part is not None else None
    if found is None or part is None:
        return torch.ones(())
    return as_factor(f"{linear}.{part}", found, is_divisor=layout is WeightFormat.NVFP4_PACKED).reshape(())


def _check_disk(folder: Path, sizes: list[int]) -> None:
    free = shutil.disk_usage(folder).free
    if sum(sizes) > free:
        raise ConfigError(
            f"The checkpoint takes {sum(sizes) / 1e9:.1f} GB more, but {folder} has {free / 1e9:.1f} GB free.",
            param="folder",
            hint="Name a folder on a larger disk.",
        )


def _copy_files(source: Path, out: ConversionFolder) -> tuple[str, ...]:
    """Copy the files that a checkpoint has beside its weights (`_COPIED`); returns what else lies there."""
    left_out = []
    for path in sorted(source.iterdir()):
        if path.name in _WRITTEN_HERE or path.suffix == ".safetensors" or path.name.startswith("."):
            continue
        if path.is_file() and any(fnmatchcase(path.name, pattern) for pattern in _COPIED):
            out.copy(path)
        else:
            left_out.append(path.name)
    return tuple(left_out)


def _write_configs(
    out: ConversionFolder,
    source: Path,
    config: M3Config,
    stored: Checkpoint,
    target: str,
    specs: Iterable[LinearSpec],
) -> None:
    modules = [n.rpartition(".")[0] for n in stored.plain if n.endswith((".gate.weight", "embed_tokens.weight"))]
    modules.append("language_model.lm_head")
    modules += sorted({n.rpartition(".")[0] for n in stored.skipped if n.startswith(VISION_PREFIXES)})
    stated = quantization_config(target, specs, modules, config.kv_cache_format)
    if target == "modelopt" and stated is not None:
        out.write_json(QUANTIZATION_FILE, hf_quant_config(stated))
    raw: dict[str, Any] = read_json(source / "config.json") or {}
    raw.pop("quantization_config", None)
    if isinstance(raw.get("text_config"), dict):
        raw["text_config"].pop("quantization_config", None)
    if stated is not None:
        raw["quantization_config"] = stated
    out.write_json("config.json", raw)
