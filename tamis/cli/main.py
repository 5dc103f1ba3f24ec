"""Entry point of `tamis`: an exit code for every outcome, a sentence for every error, never a traceback.

Exit codes: 0 done; 1 failed; 2 a flag, model or request that cannot be honoured; 130 interrupted. TAMIS_DEBUG=1
prints the traceback as well.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence

from tamis.errors import TamisError

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (without the program's name; the process's own when None) and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character of the answer shows a question mark, and goes on.
            stream.reconfigure(errors="replace")
    try:
        from tamis.cli.app import run

        return run(arguments)
    except TamisError as error:
        _report(error.sentence())
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has had enough; the interpreter must not try to flush the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return _report_bug(error)
        _report(f"The output could not be written: {os.strerror(error.errno)}.")
        return 1
    except Exception as error:
        return _report_bug(error)


def _open_missing_streams() -> None:
    """Standard streams that were closed lead to the null device, lest the next socket takes their number."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _report_bug(error: Exception) -> int:
    _report(f"{type(error).__name__}: {' '.join(str(error).split())} (a bug; TAMIS_DEBUG=1 shows where)")
    return 1


def _report(sentence: str) -> None:
    if os.environ.get("TAMIS_DEBUG") == "1":
        import traceback

        traceback.print_exc()
    print(f"error: {sentence}", file=sys.stderr)
