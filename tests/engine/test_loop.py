from __future__ import annotations

import threading
from queue import Empty, SimpleQueue

from tamis.config import EngineConfig
from tamis.engine.loop import STOPPED, run_engine
from tamis.engine.messages import EngineRequest
from tamis.engine.protocol import (
    Abort,
    Add,
    Command,
    Deltas,
    Died,
    Event,
    GetStats,
    Loaded,
    Loading,
    Refused,
    Stats,
    Stop,
)
from tamis.engine.sampling_params import SamplingParams
from tests.engine.fake_runner import FakeRunner, engine_info

INFO = engine_info()


def request(request_id: str, max_tokens: int = 2, num_tokens: int = 4) -> EngineRequest:
    return EngineRequest(
        request_id=request_id, prompt_token_ids=[1] * num_tokens, sampling=SamplingParams(max_tokens=max_tokens)
    )


class Script:
    """Stands in for the command queue: hands out the next batch whenever the loop is idle, or each time it looks."""

    def __init__(self, *batches: list[Command]):
        self.batches = list(batches)
        self.now: list[Command] = []
        self.blocked = 0

    def get(self, block: bool) -> Command:
        if not self.now and block:
            self.blocked += 1
            self.now = self.batches.pop(0)
        if not self.now:
            raise Empty
        return self.now.pop(0)


def run(script: Script, progress: list[tuple[str, int]] | None = None) -> tuple[bool, list[Event]]:
    events: list[Event] = []

    def load(report):  # type: ignore[no-untyped-def]
        for stage, percent in progress or []:
            report(stage, percent)
        return FakeRunner(INFO), INFO

    commands: SimpleQueue[Command] = script  # type: ignore[assignment]
    return run_engine(EngineConfig(), load, commands, events.append, threading.Event()), events


def test_the_loop_sleeps_on_the_queue_when_it_is_idle_and_only_then() -> None:
    script = Script([Add(request("a", max_tokens=20))], [GetStats(1)], [Stop()])
    stopped, events = run(script)
    assert stopped
    assert script.blocked == 3
    assert [event.stats.steps for event in events if isinstance(event, Stats)] == [20]


def test_events_of_a_whole_life_in_order() -> None:
    script = Script([Add(request("a")), Add(request("bad", num_tokens=0)), GetStats(7)], [Stop()])
    _, events = run(script, [("loading", 50), ("loading", 50), ("warming_up", 0)])
    assert [type(event) for event in events] == [Loading, Loading, Loaded, Refused, Stats, Deltas, Deltas, Died]
    assert events[0] == Loading("loading", 50)
    assert events[3].request_id == "bad" and events[3].error.kind == "InvalidRequestError"  # type: ignore[union-attr]
    assert events[-1] == Died(STOPPED)


def test_the_news_of_one_step_is_one_event() -> None:
    _, events = run(Script([Add(request(f"r{n}")) for n in range(5)], [Stop()]))
    assert [len(event.deltas) for event in events if isinstance(event, Deltas)] == [5, 5]


def test_an_abort_is_answered_before_the_next_step() -> None:
    script = Script([Add(request("a")), Abort(["a", "unknown"]), GetStats(1)], [Stop()])
    _, events = run(script)
    deltas, stats = events[1:3]
    assert [(d.request_id, d.finish_reason) for d in deltas.deltas] == [("a", "abort")]  # type: ignore[union-attr]
    assert stats.stats.num_running + stats.stats.num_waiting == 0  # type: ignore[union-attr]


def test_stop_aborts_what_is_live() -> None:
    _, events = run(Script([Add(request("a", max_tokens=9)), Add(request("b")), Stop()]))
    last = [event for event in events if isinstance(event, Deltas)][-1]
    assert [(d.request_id, d.finish_reason) for d in last.deltas] == [("a", "abort"), ("b", "abort")]
