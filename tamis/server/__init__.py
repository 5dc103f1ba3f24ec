"""HTTP: the OpenAI-compatible API, health, metrics. `tamis.server.app` has the entry points.

Nothing is imported here, so that the command line can read `tamis.server.config` without paying for FastAPI.
"""

from __future__ import annotations
