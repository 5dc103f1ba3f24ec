"""Fill a model from sharded safetensors: every tensor is accounted for before the first byte is copied."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from tamis.errors import CheckpointError
from tamis.models.config import M3Config
from tamis.models.m3 import M3ForCausalLM
from tamis.runner.names import Source, destinations, sources

_LISTED_NAMES = 8
_DTYPES = ("BF16", "F16", "F32")
Progress = Callable[[str, int], None]


def build_model(config: M3Config, dtype: torch.dtype, device: torch.device) -> M3ForCausalLM:
    """A model with uninitialised parameters in `dtype` (router and its bias stay fp32)."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = M3ForCausalLM(config)
    finally:
        torch.set_default_dtype(previous)
    return model.requires_grad_(False).eval()


def load_dummy(model: M3ForCausalLM, seed: int) -> None:
    """Random weights of unit-gain scale: the same for the same seed and shapes."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        std = 0.1 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5
        parameter.data.copy_(torch.empty(parameter.shape).normal_(0.0, std, generator=generator))


def load_weights(model: M3ForCausalLM, folder: Path, progress: Progress) -> None:
    """Copy a checkpoint's tensors into the model, shard by shard through mmap.

    Args:
        model: from `build_model`.
        folder: with model.safetensors, or model.safetensors.index.json and its shards.
        progress: called with ("loading", percent).

    Raises:
        CheckpointError: no or broken shards; missing, surplus or misshapen tensors, by name.
    """
    files = _shards(folder)
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, str] = {}
    owner: dict[str, Path] = {}
    for file in files:
        for name, (shape, dtype) in _read_header(file).items():
            if name in owner:
                raise CheckpointError(f"Tensor {name} stands in both {owner[name].name} and {file.name} of {folder}.")
            shapes[name], dtypes[name], owner[name] = shape, dtype, file
    targets = destinations(model)
    found = _by_canonical_name(folder, shapes)
    _check(folder, {n: tuple(t.shape) for n, t in targets.items()}, found, dtypes)

    by_file: dict[Path, dict[str, list[tuple[str, Source]]]] = {}
    for canonical, source in found.items():
        by_file.setdefault(owner[source.name], {}).setdefault(source.name, []).append((canonical, source))
    total = sum(t.numel() for t in targets.values())
    done = 0
    for file, names in by_file.items():
        with safe_open(file, framework="pt") as shard:
            for name, pieces in names.items():
                tensor = shard.get_tensor(name)
                for canonical, source in pieces:
                    targets[canonical].copy_(source.cut(tensor))
                    done += targets[canonical].numel()
                progress("loading", 100 * done // total)


def _shards(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        single = folder / "model.safetensors"
        if not single.exists():
            raise CheckpointError(
                f"{folder} has neither model.safetensors nor model.safetensors.index.json.",
                hint="Name a folder with safetensors weights, or use --load-format dummy.",
            )
        return [single]
    try:
        weight_map: dict[str, Any] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(weight_map.values()))
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} is not a safetensors index: {error!r}.") from None
    missing = [n for n in names if not (folder / n).is_file()]
    if missing:
        raise CheckpointError(
            f"{folder} lacks {len(missing)} of {len(names)} shards: {_names(missing)}.",
            hint="Download the checkpoint again.",
        )
    return [folder / n for n in names]


def _read_header(file: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Tensor name → (shape, safetensors dtype)."""
    try:
        with safe_open(file, framework="pt") as shard:
            slices = {name: shard.get_slice(name) for name in shard.keys()}  # noqa: SIM118
            return {name: (tuple(s.get_shape()), s.get_dtype()) for name, s in slices.items()}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{file} is truncated or not a safetensors file ({error}).", hint="Download or copy it again."
        ) from None


def _by_canonical_name(folder: Path, shapes: dict[str, tuple[int, ...]]) -> dict[str, Source]:
    found: dict[str, Source] = {}
    for canonical, source in sources(shapes):
        if canonical in found:
            raise CheckpointError(
                f"{folder} holds {canonical} twice, as {found[canonical].name} and as {source.name}.",
                hint="Keep one of the two namings.",
            )
        found[canonical] = source
    return found


def _check(
    folder: Path, expected: dict[str, tuple[int, ...]], found: dict[str, Source], dtypes: dict[str, str]
) -> None:
    problems = []
    # A quantised tensor of the right shape would load as if its codes were values.
    other_dtypes = [
        f"{source.name} is {dtypes[source.name]}"
        for name, source in found.items()
        if name in expected and dtypes[source.name] not in _DTYPES
    ]
    missing = [name for name in expected if name not in found]
    surplus = [source.name for name, source in found.items() if name not in expected]
    misshapen = [
        f"{source.name} is {list(source.shape)}, expected {list(expected[name])}"
        for name, source in found.items()
        if name in expected and source.shape != expected[name]
    ]
    if missing:
        problems.append(f"{len(missing)} missing ({_names(missing)})")
    if surplus:
        problems.append(f"{len(surplus)} surplus ({_names(dict.fromkeys(surplus))})")
    if misshapen:
        problems.append(f"{len(misshapen)} misshapen ({_names(misshapen)})")
    if other_dtypes:
        listed = _names(dict.fromkeys(other_dtypes))
        problems.append(f"{len(other_dtypes)} of a dtype other than {', '.join(_DTYPES)} ({listed})")
    if problems:
        raise CheckpointError(
            f"The tensors of {folder} do not fit its config.json: {'; '.join(problems)}.",
            hint="Check that weights and config.json belong together.",
        )


def _names(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _LISTED_NAMES} more" if len(listed) > _LISTED_NAMES else ""
    return ", ".join(listed[:_LISTED_NAMES]) + more
