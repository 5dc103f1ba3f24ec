"""The folder that a conversion writes: shards that appear whole or not at all, and what they were made from.

A shard is written under another name and renamed, config.json comes last: a folder that has one is complete. A note
of source and target lies beside the shards, so that an interrupted conversion goes on where it was and a different
one is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from tamis.errors import CheckpointError, ConfigError
from tamis.runner.shards import read_header

_NOTE = ".tamis-quantize.json"


class ConversionFolder:
    """Where a conversion goes.

    Args:
        folder: made when it is not there; otherwise empty, or of the same conversion.
        source: the checkpoint's folder.
        files: the weight files of the source.
        settings: what else decides every byte (format, shard size).

    Raises:
        ConfigError: the folder is the source, holds something else, or cannot be written; all methods raise the last.
    """

    def __init__(self, folder: Path, source: Path, files: Sequence[Path], settings: dict[str, Any]):
        self.folder = folder
        with self._writing():
            self._open(source, files, settings)

    def _open(self, source: Path, files: Sequence[Path], settings: dict[str, Any]) -> None:
        folder = self.folder
        if os.path.realpath(folder) == os.path.realpath(source):  # links in a circle are mkdir's to refuse
            raise ConfigError(f"{folder} is the source itself.", param="folder", hint="Name another folder.")
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"{folder} is a file.", param="folder", hint="Name a folder.")
        note = {"settings": settings, "source": _fingerprint(source, files)}
        # A note that was cut short is all that a run leaves that ended there.
        if folder.exists() and any(path.name != _part(_NOTE) for path in folder.iterdir()):
            self._check_note(note)
        folder.mkdir(parents=True, exist_ok=True)
        self.write_json(_NOTE, note)

    def _check_note(self, note: dict[str, Any]) -> None:
        try:
            found = json.loads((self.folder / _NOTE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = None
        if not isinstance(found, dict) or "settings" not in found:
            raise ConfigError(
                f"{self.folder} is not empty and holds no unfinished conversion.", param="folder", hint="Name another."
            )
        if found != note:
            other = "another source" if found["settings"] == note["settings"] else "other settings"
            raise ConfigError(
                f"{self.folder} holds a conversion from {other} ({_describe(found)}, now {_describe(note)}).",
                param="folder",
                hint="Delete it, or name another folder.",
            )

    def has(self, name: str, tensors: dict[str, tuple[int, ...]]) -> bool:
        """Whether a finished shard with exactly these names and shapes is there."""
        path = self.folder / name
        if not path.is_file():
            return False
        try:
            header = read_header(path)
        except CheckpointError:
            return False
        return {n: t.shape for n, t in header.items()} == tensors

    def write_shard(self, name: str, tensors: dict[str, Tensor]) -> None:
        """Write a shard; it appears under its name when it is whole."""
        part = self.folder / _part(name)
        with self._writing():
            save_file({n: _own(t) for n, t in tensors.items()}, part, metadata={"format": "pt"})
            os.replace(part, self.folder / name)

    def write_json(self, name: str, value: dict[str, Any]) -> None:
        """Write a JSON file, whole or not at all."""
        part = self.folder / _part(name)
        with self._writing():
            part.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
            os.replace(part, self.folder / name)

    def copy(self, path: Path) -> None:
        """Copy a file of the source."""
        with self._writing():
            shutil.copyfile(path, self.folder / path.name)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, SafetensorError) as error:  # safetensors has its own kind for a full disk
            raise ConfigError(
                f"{self.folder} cannot be written: {error}.",
                param="folder",
                hint="Make room or name another folder; finished files are kept for the next run.",
            ) from error


def _part(name: str) -> str:
    """The name of a file while it is being written."""
    return f".{name}.part"


def _own(tensor: Tensor) -> Tensor:
    """A contiguous tensor with memory of its own, as safetensors wants them."""
    tensor = tensor.detach().contiguous()
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _fingerprint(source: Path, files: Sequence[Path]) -> dict[str, Any]:
    """What tells two sources apart without reading their weights: configs, names, sizes and times of the files."""
    configs = [source / "config.json", source / "hf_quant_config.json"]
    digest = hashlib.sha256(b"".join(p.read_bytes() for p in configs if p.is_file())).hexdigest()
    stats = {file.name: [file.stat().st_size, file.stat().st_mtime_ns] for file in files}
    return {"folder": str(source.resolve()), "config_sha256": digest, "files": stats}


def _describe(note: dict[str, Any]) -> str:
    settings = ", ".join(f"{key} {value}" for key, value in note["settings"].items())
    return f"{note.get('source', {}).get('folder')}: {settings}"
