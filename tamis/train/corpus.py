"""Text that is already on the machine, under licences that allow it: Python's own library and NumPy's sources.

Sources: the standard library and the language reference (`pydoc_data`) of the running interpreter (PSF licence), NumPy
(BSD-3-Clause). The documents follow from the installed versions, which the model card names.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sysconfig
from collections.abc import Iterator
from pathlib import Path

# Tests, generated tables and vendored packages under other licences.
_EXCLUDED = frozenset(
    """
    test tests testing idle_test lib2to3 encodings site-packages dist-packages __pycache__ pydoc_data ensurepip
    lib-dynload turtledemo __phello__ _vendor f2py
    """.split()
)
# Typographic signs of the reference, as a keyboard has them.
_PLAIN = str.maketrans(
    {"’": "'", "‘": "'", "“": '"', "”": '"', "–": "-", "—": "-", "…": "...", "•": "*", "→": "->", "\xa0": " "}
)
_LONGEST_LINE = 200
_MAX_FILE_BYTES = 300_000
# One file in so many is never trained on: perplexity is measured there.
_HELD_OUT_SHARE = 16


def library_sources(*, held_out: bool = False) -> list[str]:
    """Python source files, in path order: those to train on, or those kept for measuring, by a hash of their path."""
    # The names are part of what is hashed, and not to be changed: the bundled weights were trained on the others.
    roots = {"python3.12": Path(sysconfig.get_paths()["stdlib"])}
    numpy = importlib.util.find_spec("numpy")
    if numpy and numpy.origin:
        roots["numpy"] = Path(numpy.origin).parent
    return [text for name, root in roots.items() for text in _python_files(name, root, held_out)]


def _python_files(name: str, root: Path, held_out: bool) -> Iterator[str]:
    for path in sorted(root.rglob("*.py")):
        # The same file of every version of the library: what is trained with one is measured with another.
        if _is_held_out(f"{name}/{path.relative_to(root)}") != held_out:
            continue
        if _EXCLUDED & set(path.relative_to(root).parts) or path.stat().st_size > _MAX_FILE_BYTES:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if len(text) > 200 and max(map(len, text.splitlines())) <= _LONGEST_LINE and text.isascii():
            yield text


def _is_held_out(path: str) -> bool:
    return hashlib.sha256(path.encode()).digest()[0] % _HELD_OUT_SHARE == 0


def reference_topics() -> list[str]:
    """Chapters of the language reference, as plain text."""
    if importlib.util.find_spec("pydoc_data.topics") is None:
        return []  # some distributions leave it out
    from pydoc_data.topics import topics

    return [
        text for _, text in sorted((key, value.translate(_PLAIN)) for key, value in topics.items()) if text.isascii()
    ]


def prose_paragraphs(topics: list[str]) -> list[str]:
    """Paragraphs of running text, one line each: what long prompts are filled with."""
    paragraphs = []
    for topic in topics:
        for paragraph in topic.split("\n\n"):
            text = " ".join(paragraph.split())
            letters = sum(c.isalpha() or c == " " for c in text)
            if 80 <= len(text) <= 600 and letters > 0.88 * len(text) and text[0].isupper():
                paragraphs.append(text)
    return paragraphs
