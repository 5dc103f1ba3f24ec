"""What the frontend sees of an engine, whatever the transport; here it is a queue to a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tamis.config import EngineConfig
from tamis.engine.event_client import EventClient
from tamis.engine.loop import Load, Progress
from tamis.engine.messages import EngineInfo, EngineRequest, RequestDelta
from tamis.engine.plan import Runner, StepPlan
from tamis.engine.protocol import Add, Command, Unreadable
from tamis.engine.sampling_params import SamplingParams
from tamis.errors import (
    CheckpointError,
    ContextLengthError,
    EngineDeadError,
    InvalidRequestError,
    OverloadedError,
    TamisError,
    UnavailableError,
)
from tests.engine.fake_runner import FakePendingStep, FakeRunner, engine_info, tokens_alone
from tests.engine.thread_client import ThreadClient

INFO = engine_info(num_blocks=4096, max_model_len=500_000)
FOREVER = 400_000


def load(progress: Progress) -> tuple[Runner, EngineInfo]:
    return FakeRunner(INFO), INFO


def request(request_id: str = "a", max_tokens: int = 5, num_tokens: int = 10) -> EngineRequest:
    return EngineRequest(
        request_id=request_id, prompt_token_ids=[1] * num_tokens, sampling=SamplingParams(max_tokens=max_tokens)
    )


async def collect(client: EventClient, request: EngineRequest) -> list[RequestDelta]:
    return [delta async for delta in client.generate(request)]


def tokens(deltas: list[RequestDelta]) -> list[int]:
    return [token_id for delta in deltas for token_id in delta.token_ids]


def with_client(scene: Callable[[ThreadClient], Any], load: Load = load, config: EngineConfig | None = None) -> None:
    """Run a scene with a loaded engine and shut it down."""

    async def play() -> None:
        client = ThreadClient(config or EngineConfig(), load)
        try:
            await client.ready()
            await scene(client)
        finally:
            await client.shutdown()
        assert client.health().stage == "dead"

    asyncio.run(asyncio.wait_for(play(), 30))


def test_streams_of_several_requests_do_not_mix() -> None:
    async def scene(client: ThreadClient) -> None:
        assert (await client.ready()) == INFO
        batch = [request(f"r{n}", max_tokens=3 + n, num_tokens=10 + n) for n in range(5)]
        answers = await asyncio.gather(*(collect(client, r) for r in batch))
        assert [tokens(answer) for answer in answers] == [tokens_alone(r, 1000) for r in batch]

    with_client(scene)


def test_health_follows_the_load() -> None:
    gate, seen = threading.Event(), []

    def slow_load(progress: Progress) -> tuple[Runner, EngineInfo]:
        progress("loading", 40)
        gate.wait(10)
        return load(progress)

    async def play() -> None:
        client = ThreadClient(EngineConfig(), slow_load)
        while client.health().percent != 40:
            await asyncio.sleep(0)
        seen.append(client.health().stage)
        with pytest.raises(UnavailableError, match="still being loaded"):
            await collect(client, request())
        with pytest.raises(UnavailableError):
            await client.stats()
        gate.set()
        await client.ready()
        seen.append(client.health().stage)
        await client.shutdown()
        seen.append(client.health().stage)

    asyncio.run(play())
    assert seen == ["loading", "ready", "dead"]


@pytest.mark.parametrize(
    ("error", "raised", "says"),
    [
        pytest.param(
            CheckpointError("Shard 2 is truncated.", param="model", hint="Fetch it again."),
            CheckpointError,
            "Shard 2 is truncated. Fetch it again.",
            id="user error",
        ),
        pytest.param(ValueError("bad\nthing"), TamisError, "could not be loaded.*ValueError: bad thing", id="bug"),
    ],
)
def test_a_load_error_reaches_whoever_waits(error: Exception, raised: type[TamisError], says: str) -> None:
    def broken_load(progress: Progress) -> tuple[Runner, EngineInfo]:
        raise error

    async def play() -> None:
        client = ThreadClient(EngineConfig(), broken_load)
        with pytest.raises(raised, match=says.split(". ")[0]) as caught:
            await client.ready()
        assert type(caught.value) is raised
        assert (caught.value.param, caught.value.hint) == (getattr(error, "param", None), getattr(error, "hint", None))
        assert client.health().stage == "dead" and client.health().reason
        with pytest.raises(EngineDeadError):
            await collect(client, request())
        await client.shutdown()

    asyncio.run(play())


def test_a_load_is_cut_short_by_shutdown() -> None:
    started = threading.Event()

    def endless_load(progress: Progress) -> tuple[Runner, EngineInfo]:
        for percent in range(10**9):
            started.set()
            progress("loading", percent % 100)
        raise AssertionError("nobody stopped the load")

    async def play() -> None:
        client = ThreadClient(EngineConfig(), endless_load)
        waiting = asyncio.create_task(client.ready())
        await asyncio.to_thread(started.wait)
        await client.shutdown()
        with pytest.raises(EngineDeadError, match="shut down"):
            await waiting

    asyncio.run(asyncio.wait_for(play(), 30))


@pytest.mark.parametrize(
    ("bad", "raised"),
    [
        pytest.param(request(num_tokens=0), InvalidRequestError, id="empty prompt"),
        pytest.param(request(max_tokens=10**6), ContextLengthError, id="over the context"),
    ],
)
def test_a_refusal_is_raised_and_the_next_request_works(bad: EngineRequest, raised: type[TamisError]) -> None:
    async def scene(client: ThreadClient) -> None:
        with pytest.raises(raised) as caught:
            await collect(client, bad)
        assert type(caught.value) is raised
        assert tokens(await collect(client, request())) == tokens_alone(request(), 1000)

    with_client(scene)


def test_a_full_queue_is_raised_with_its_retry_time() -> None:
    async def scene(client: ThreadClient) -> None:
        streams = [client.generate(request(f"r{n}", max_tokens=FOREVER)) for n in range(9)]
        for stream in streams[:8]:
            await anext(stream)
        waiting = asyncio.ensure_future(anext(streams[8]))
        while (await client.stats()).num_waiting == 0:
            pass
        with pytest.raises(OverloadedError) as caught:
            await collect(client, request("late"))
        assert caught.value.retry_after_s is not None and caught.value.retry_after_s >= 1
        waiting.cancel()
        for stream in streams[:8]:
            await stream.aclose()

    with_client(scene, config=EngineConfig(max_queued_requests=1))


async def leave_by_aclose(stream: AsyncIterator[RequestDelta]) -> None:
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]


async def leave_by_cancellation(stream: AsyncIterator[RequestDelta]) -> None:
    async def read() -> None:
        async for _ in stream:
            reading.set()

    reading = asyncio.Event()
    task = asyncio.create_task(read())
    await reading.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("leave", [leave_by_aclose, leave_by_cancellation])
def test_whoever_leaves_frees_blocks_within_a_step(leave: Callable[[AsyncIterator[RequestDelta]], Any]) -> None:
    async def scene(client: ThreadClient) -> None:
        await leave(client.generate(request(max_tokens=FOREVER)))
        # Commands are obeyed in order, between steps: the abort comes before this question.
        stats = await client.stats()
        assert (stats.num_running, stats.num_used_blocks, stats.num_leaked_blocks) == (0, 0, 0)

    with_client(scene)


def test_an_id_is_free_again_when_its_last_word_is_spoken() -> None:
    async def scene(client: ThreadClient) -> None:
        stream = client.generate(request("a", max_tokens=FOREVER))
        await anext(stream)
        with pytest.raises(InvalidRequestError, match="'a' is already running"):
            await collect(client, request("a"))
        await stream.aclose()
        await client.stats()
        assert tokens(await collect(client, request("a"))) == tokens_alone(request("a"), 1000)

    with_client(scene)


def test_a_failing_step_is_a_last_delta_and_the_next_request_works() -> None:
    class FailsOnce(FakeRunner):
        def submit(self, plan: StepPlan) -> FakePendingStep:
            self.fail_result = plan.step_id == 2
            return super().submit(plan)

    async def scene(client: ThreadClient) -> None:
        last = (await collect(client, request("a", max_tokens=50)))[-1]
        assert last.finish_reason == "error"
        assert last.error is not None and "Failure" in last.error.message
        assert tokens(await collect(client, request("b"))) == tokens_alone(request("b"), 1000)

    with_client(scene, lambda progress: (FailsOnce(INFO), INFO))


def test_a_dead_engine_ends_every_stream_and_says_why() -> None:
    class BreaksForGood(FakeRunner):
        def submit(self, plan: StepPlan) -> FakePendingStep:
            self.fail_result = plan.step_id == 5
            return super().submit(plan)

        def reset(self) -> None:
            raise OSError("the device is gone")

    async def play() -> None:
        client = ThreadClient(EngineConfig(), lambda progress: (BreaksForGood(INFO), INFO))
        await client.ready()
        streams = [collect(client, request(f"r{n}", max_tokens=FOREVER)) for n in range(3)]
        answers = await asyncio.gather(*streams, return_exceptions=True)
        assert [type(answer) for answer in answers] == [EngineDeadError] * 3
        assert client.health().stage == "dead"
        assert "OSError: the device is gone" in (client.health().reason or "")
        with pytest.raises(EngineDeadError, match="the device is gone"):
            await collect(client, request())
        with pytest.raises(EngineDeadError):
            await client.stats()
        await client.shutdown()

    asyncio.run(asyncio.wait_for(play(), 30))


def test_shutdown_aborts_what_runs_and_refuses_new_requests() -> None:
    async def scene(client: ThreadClient) -> None:
        answer = asyncio.create_task(collect(client, request("a", max_tokens=FOREVER)))
        while (await client.stats()).num_running == 0:
            pass
        ending = asyncio.create_task(client.shutdown())
        while client.health().stage == "ready":
            await asyncio.sleep(0)
        # The engine may have ended by now, and then says so itself.
        with pytest.raises(UnavailableError, match=r"shutting down|shut down"):
            await collect(client, request("b"))
        assert (await answer)[-1].finish_reason == "abort"
        await ending

    with_client(scene)


def test_a_request_that_cannot_be_sent_leaves_its_id_free() -> None:
    class Choosy(ThreadClient):
        def _send(self, command: Command) -> None:
            if isinstance(command, Add) and command.request.cache_salt is not None:
                raise OverflowError("the wire cannot hold it")
            super()._send(command)

    async def play() -> None:
        client = Choosy(EngineConfig(), load)
        await client.ready()
        unsendable = request("a")
        unsendable.cache_salt = "x"
        with pytest.raises(OverflowError, match="cannot hold it"):
            await collect(client, unsendable)
        assert tokens(await collect(client, request("a"))) == tokens_alone(request("a"), 1000)
        await client.shutdown()

    asyncio.run(asyncio.wait_for(play(), 30))


def test_a_command_that_cannot_be_read_ends_every_stream() -> None:
    async def scene(client: ThreadClient) -> None:
        answer = asyncio.create_task(collect(client, request("a", max_tokens=FOREVER)))
        while (await client.stats()).num_running == 0:
            pass
        client._commands.put(Unreadable("a command of 5 bytes cannot be read"))
        with pytest.raises(EngineDeadError, match="5 bytes cannot be read"):
            await answer

    with_client(scene)
