"""`python -m tamis` is the `tamis` command."""

from __future__ import annotations

import sys

from tamis.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
