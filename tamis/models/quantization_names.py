"""Module names of quantization configs: exact, containers, bare components, globs and `re:` expressions.

Configs name modules as the hub does (`language_model.model.layers.3.block_sparse_moe.experts.0.w1`), as `transformers`
does (`model.language_model.layers.3.mlp.experts`), or by a tail of either (`lm_head`, `self_attn`).
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator

_HUB_PREFIX = "language_model.model."
_ROOTS = (_HUB_PREFIX, "model.language_model.")
# The same module under transformers' names.
_EXPERT_PARTS = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}


def spellings(linear: str) -> list[str]:
    """The names under which a config may speak of a linear, the hub's first."""
    stem = linear.removeprefix(_HUB_PREFIX)
    stems = [stem]
    if ".block_sparse_moe." in stem:
        other = stem.replace(".block_sparse_moe.", ".mlp.")
        stems.append(other)
        head, _, part = other.rpartition(".")
        if part in _EXPERT_PARTS:
            stems.append(f"{head}.{_EXPERT_PARTS[part]}")
    if match := re.fullmatch(r"(.*\.self_attn)\.index_([qk])_proj", stem):
        stems.append(f"{match[1]}.indexer.{match[2]}_proj")
    return [root + s for root in _ROOTS for s in stems]


class NamePatterns:
    """A list of module names and patterns, asked which entry speaks of a linear.

    A plain entry speaks of a module and of everything inside it; it may leave out leading components. An entry with
    `*`, `?` or `[` is a glob over the whole name of the module or of one that contains it; `re:…` is a regular
    expression matched from the start.
    """

    def __init__(self, entries: Iterable[str]):
        entries = list(entries)
        self._plain = {e for e in entries if not _is_pattern(e)}
        self._patterns = [(re.compile(_expression(e)), e) for e in entries if _is_pattern(e)]
        # A checkpoint has twenty thousand experts: most are told apart from every entry by these alone.
        self._firsts = {e.split(".", 1)[0] for e in self._plain}
        self._lasts = {e.rsplit(".", 1)[-1] for e in self._plain}

    def find(self, linear: str) -> str | None:
        """The entry that speaks of `linear` (its hub name without `.weight`); the longest plain one wins."""
        names = [name.split(".") for name in spellings(linear)] if self._plain or self._patterns else []
        found = [entry for parts in names for entry in self._plain_entries(parts)]
        if found:
            return max(found, key=len)
        for expression, entry in self._patterns:
            for parts in names:
                if any(expression.match(".".join(parts[:stop])) for stop in range(1, len(parts) + 1)):
                    return entry
        return None

    def _plain_entries(self, parts: list[str]) -> Iterator[str]:
        stops = [i + 1 for i, part in enumerate(parts) if part in self._lasts]
        for start in [i for i, part in enumerate(parts) if stops and part in self._firsts]:
            for stop in stops:
                entry = ".".join(parts[start:stop])
                if entry in self._plain:
                    yield entry


def _is_pattern(entry: str) -> bool:
    return entry.startswith("re:") or any(c in entry for c in "*?[")


def _expression(entry: str) -> str:
    return entry.removeprefix("re:") if entry.startswith("re:") else fnmatch.translate(entry)
