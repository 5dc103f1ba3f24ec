"""A checkpoint's safetensors files: which tensors there are, by header, and reading them through mmap."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from tamis.errors import CheckpointError

_LISTED_NAMES = 8
_AGAIN = "Download the checkpoint again."


@dataclass(frozen=True)
class StoredTensor:
    """What a header says of a tensor: its safetensors dtype name, and the file it lies in."""

    shape: tuple[int, ...]
    dtype: str
    file: Path

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


class Shards:
    """The tensors of a folder; files stay mapped while this lives.

    Attributes:
        tensors: name → what its header says, file by file in the order of their names.

    Raises:
        CheckpointError: no weights, a missing or broken file, a tensor in two files.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.files = shard_files(folder)
        self.tensors: dict[str, StoredTensor] = {}
        for file in self.files:
            for name, stored in read_header(file).items():
                if name in self.tensors:
                    raise CheckpointError(
                        f"Tensor {name} stands in both {self.tensors[name].file.name} and {file.name} of {folder}."
                    )
                self.tensors[name] = stored
        self._open: dict[Path, Any] = {}

    def read(self, name: str) -> Tensor:
        """A tensor, on the CPU; its bytes are read as they are used."""
        file = self.tensors[name].file
        if file not in self._open:
            self._open[file] = safe_open(file, framework="pt").__enter__()
        tensor: Tensor = self._open[file].get_tensor(name)
        return tensor


def shard_files(folder: Path) -> list[Path]:
    """The files that hold a folder's weights, by index or as the one model.safetensors.

    Raises:
        CheckpointError: neither is there, the index is broken, or files are missing.
    """
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
    # ValueError: no JSON, or no UTF-8.
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} is not a safetensors index: {error!r}.", hint=_AGAIN) from None
    # A download that names files elsewhere must not decide which are read.
    elsewhere = [n for n in names if not isinstance(n, str) or Path(n).is_absolute() or ".." in Path(n).parts]
    if elsewhere:
        raise CheckpointError(
            f"{index} names {elsewhere[0]!r} in weight_map, but must name files of its own folder.", hint=_AGAIN
        )
    missing = [n for n in names if not os.path.isfile(folder / n)]
    if missing:
        raise CheckpointError(f"{folder} lacks {len(missing)} of {len(names)} shards: {listing(missing)}.", hint=_AGAIN)
    return [folder / n for n in names]


def read_header(file: Path) -> dict[str, StoredTensor]:
    """Every tensor of one file.

    Raises:
        CheckpointError: truncated, or not a safetensors file.
    """
    try:
        with safe_open(file, framework="pt") as shard:
            slices = {name: shard.get_slice(name) for name in shard.keys()}  # noqa: SIM118
            return {name: StoredTensor(tuple(s.get_shape()), s.get_dtype(), file) for name, s in slices.items()}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{file} is truncated or not a safetensors file ({error}).", hint="Download or copy it again."
        ) from None


def dtype_bytes(dtype: str) -> int:
    """Bytes of a value of a safetensors dtype such as BF16, F8_E4M3 or U8."""
    bits = re.match(r"[A-Z]+(\d*)", dtype)
    return int(bits[1]) // 8 if bits is not None and bits[1] else 1


def listing(names: Iterable[str]) -> str:
    """Names for a message: the first few, and how many more; on one line whatever a file calls its tensors."""
    listed = [name if name.isprintable() else repr(name) for name in names]
    more = f" and {len(listed) - _LISTED_NAMES} more" if len(listed) > _LISTED_NAMES else ""
    return ", ".join(listed[:_LISTED_NAMES]) + more
