"""What is said to a running engine loop and what it says: the same values in one process and over the wire."""

from __future__ import annotations

import msgspec

from tamis.engine.client import Stage
from tamis.engine.messages import EngineInfo, EngineRequest, EngineStats, ErrorInfo, RequestDelta


class Add(msgspec.Struct, tag=True):
    """Start a request. Answered by `Deltas` or `Refused`."""

    request: EngineRequest


class Abort(msgspec.Struct, tag=True):
    """End requests; those still live get a last delta with finish_reason "abort"."""

    request_ids: list[str]


class GetStats(msgspec.Struct, tag=True):
    """Answered by `Stats` with the same `call_id`."""

    call_id: int


class Stop(msgspec.Struct, tag=True):
    """Abort what is live, free the runner and end. Answered by `Died`."""


class Loading(msgspec.Struct, tag=True):
    """How far loading has come."""

    stage: Stage
    percent: int


class Loaded(msgspec.Struct, tag=True):
    """The engine is ready."""

    info: EngineInfo


class LoadFailed(msgspec.Struct, tag=True):
    """Loading ended with an error; nothing follows."""

    error: ErrorInfo


class Deltas(msgspec.Struct, tag=True):
    """The news of one step, in one message."""

    deltas: list[RequestDelta]


class Refused(msgspec.Struct, tag=True):
    """A request that never started."""

    request_id: str
    error: ErrorInfo


class Stats(msgspec.Struct, tag=True):
    """Answer to `GetStats`."""

    call_id: int
    stats: EngineStats


class Died(msgspec.Struct, tag=True):
    """The loop has ended, for a reason that is one sentence; nothing follows."""

    reason: str


class Unreadable(msgspec.Struct):
    """What a transport hands to the loop in place of a command that it could not read; never sent.

    Nobody knows who waits for its answer. So the loop dies of it, and everybody gets one.
    """

    reason: str


Command = Add | Abort | GetStats | Stop
Event = Loading | Loaded | LoadFailed | Deltas | Refused | Stats | Died
