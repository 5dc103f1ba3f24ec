"""`tamis serve` with the fake runner in a real engine process: python -m tests.server.serve_fake FOLDER JSON

JSON: {"engine": EngineConfig fields, "server": ServerConfig fields}.
"""

from __future__ import annotations

import functools
import json
import sys

import tamis.wire.client
from tamis.config import EngineConfig
from tamis.server.app import run_server
from tamis.server.config import ServerConfig
from tamis.wire.client import RemoteClient

if __name__ == "__main__":
    # A step that waits for a test's gate would use up the time in which a real one ends.
    tamis.wire.client.STOP_GRACE_S = 0.5
    folder, fields = sys.argv[1], json.loads(sys.argv[2])
    sys.exit(
        run_server(
            EngineConfig(model=folder, served_model_name="fake", **fields.get("engine", {})),
            ServerConfig(**{"port": 0, **fields.get("server", {})}),
            make_client=functools.partial(RemoteClient, loader="tests.server.fake_runner:load_engine"),
        )
    )
