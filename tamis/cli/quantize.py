"""`tamis quantize`: convert a checkpoint between the formats that load."""

from __future__ import annotations

import re
from pathlib import Path

from tamis.errors import ConfigError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


def quantize(source: str, folder: str, *, target: str, shard_size: str) -> int:
    """Convert `source` (a folder, hub id or "nano") into `folder`; progress and summary go to stderr."""
    shard_bytes = parse_size(shard_size)

    from rich.console import Console

    from tamis.frontend.model_path import resolve_model
    from tamis.frontend.progress import ProgressReport
    from tamis.runner.convert import convert

    if not folder:
        raise ConfigError("FOLDER is empty.", param="folder", hint="Name a folder to write to.")
    console = Console(stderr=True)
    try:
        with ProgressReport(console) as progress:
            done = convert(resolve_model(source), Path(folder), target, shard_bytes=shard_bytes, progress=progress)
    except KeyboardInterrupt:
        console.print("interrupted: the same command goes on with the files that are missing", highlight=False)
        raise
    size = f"{done.num_bytes / 1e9:,.1f} GB" if done.num_bytes >= 1e9 else f"{done.num_bytes / 1e6:,.1f} MB"
    files = "1 file" if done.num_shards == 1 else f"{done.num_shards} files"
    lines = [f"{done.num_tensors:,} tensors, {size} in {files}: {folder}"]
    if done.num_reused:
        lines.append(f"{done.num_reused} of {done.num_shards} files were finished before and are kept")
    if done.left_out:
        lines.append(f"not copied: {', '.join(done.left_out)}")
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
    return 0


def parse_size(text: str) -> int:
    """Bytes of "5GB", "500 MiB" or "1000000".

    Raises:
        ConfigError: anything else, or nothing.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]I?)?B?", text.strip().upper())
    size = float(match[1]) * _UNITS[match[2] or ""] if match else 0
    if not 1 <= size < 2**63:
        raise ConfigError(
            f"--shard-size is {text!r}, but must be a size over 0 such as 5GB or 500MB.", param="shard_size"
        )
    return int(size)
