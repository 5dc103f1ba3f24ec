"""Runs Python that a model wrote: in an interpreter of its own, with limits, without files, processes and network."""

from __future__ import annotations

import secrets
import subprocess
import sys
import tempfile
from collections.abc import Sequence

_SECONDS = 3
_MEMORY_BYTES = 1 << 30
_OUTPUT_BYTES = 1 << 20
# Runs before the answer. What is imported here the answer may import, nothing else: the hook sees every door out of the
# interpreter, files of modules among them, and what it raises the answer cannot undo.
_GUARD = f"""
import collections, functools, itertools, json, math, operator, random, re, resource, string, sys
resource.setrlimit(resource.RLIMIT_CPU, ({_SECONDS}, {_SECONDS}))
resource.setrlimit(resource.RLIMIT_AS, ({_MEMORY_BYTES}, {_MEMORY_BYTES}))
resource.setrlimit(resource.RLIMIT_FSIZE, ({_OUTPUT_BYTES}, {_OUTPUT_BYTES}))
def _hook(event, arguments, _doors=("open", "socket", "subprocess", "os", "ctypes", "shutil", "_winapi", "mmap")):
    if event.split(".")[0] in _doors:
        raise PermissionError(event)
_code = compile(sys.stdin.read(), "answer", "exec")
sys.addaudithook(_hook)
exec(_code, {{"__name__": "answer"}})
"""


def code_of(answer: str) -> str:
    """The Python in an answer: what stands in its first fence, or all of it."""
    _, fence, rest = answer.partition("```python\n")
    return rest.partition("```")[0] if fence else answer


def passes(answer: str, asserts: Sequence[str]) -> bool:
    """Whether all of `asserts` hold after the answer's code has run, within 3 seconds of a CPU and 6 in all."""
    # A sign at the very end that the answer cannot know: code that leaves early has not passed.
    sign = secrets.token_hex(8)
    program = "\n".join([code_of(answer), *asserts, f"print('\\n{sign}')"])
    # A file, as a pipe would take whatever an endless loop prints.
    with tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run(
                # -I -S: neither the environment's nor the folder's modules.
                [sys.executable, "-I", "-S", "-c", _GUARD],
                input=program.encode(errors="replace"),
                stdout=output,
                stderr=subprocess.DEVNULL,
                timeout=2 * _SECONDS,
            )
        except subprocess.TimeoutExpired:
            return False
        output.seek(0)
        return done.returncode == 0 and output.read().endswith(f"\n{sign}\n".encode())
