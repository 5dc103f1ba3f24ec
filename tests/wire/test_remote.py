"""The engine in its own process: life, death, and what is left behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
import zmq

from tamis.config import EngineConfig
from tamis.engine.messages import EngineRequest, RequestDelta
from tamis.engine.sampling_params import SamplingParams
from tamis.errors import CheckpointError, ContextLengthError, EngineDeadError, TamisError
from tamis.wire.client import RemoteClient
from tests.engine.fake_runner import tokens_alone
from tests.wire.fake_loaders import INFO

FOREVER = 400_000
ROOT = Path(__file__).parents[2]


def request(request_id: str = "a", max_tokens: int = 5, num_tokens: int = 10) -> EngineRequest:
    return EngineRequest(
        request_id=request_id, prompt_token_ids=[1] * num_tokens, sampling=SamplingParams(max_tokens=max_tokens)
    )


async def collect(client: RemoteClient, request: EngineRequest) -> list[RequestDelta]:
    return [delta async for delta in client.generate(request)]


def tokens(deltas: list[RequestDelta]) -> list[int]:
    return [token_id for delta in deltas for token_id in delta.token_ids]


def play(
    scene: Callable[[RemoteClient], Awaitable[None]], loader: str = "quick", config: EngineConfig | None = None
) -> RemoteClient:
    """Run a scene, shut down, and see that nothing is left: no process, no zombie, no socket."""

    async def run() -> RemoteClient:
        client = RemoteClient(config or EngineConfig(), loader=f"tests.wire.fake_loaders:{loader}")
        try:
            await asyncio.wait_for(scene(client), 30)
        finally:
            await client.shutdown()
        return client

    client = asyncio.run(run())
    with pytest.raises(ProcessLookupError):
        os.kill(client.pid, 0)
    assert not os.path.exists(client._socket_dir)
    assert client.health().stage == "dead"
    return client


def test_requests_travel_there_and_back() -> None:
    async def scene(client: RemoteClient) -> None:
        assert await client.ready() == INFO
        assert client.health().stage == "ready"
        batch = [request(f"r{n}", max_tokens=3 + n, num_tokens=10 + n) for n in range(12)]
        answers = await asyncio.gather(*(collect(client, r) for r in batch))
        assert [tokens(answer) for answer in answers] == [tokens_alone(r, 1000) for r in batch]
        with pytest.raises(ContextLengthError) as caught:
            await collect(client, request(max_tokens=10**6))
        assert caught.value.param == "max_tokens" and caught.value.hint is not None
        # Whoever leaves frees the blocks: the abort is obeyed before the question.
        stream = client.generate(request(max_tokens=FOREVER))
        await anext(stream)
        await stream.aclose()
        stats = await client.stats()
        assert (stats.num_running, stats.num_used_blocks, stats.num_leaked_blocks) == (0, 0, 0)

    play(scene)


def test_a_killed_engine_ends_every_stream_within_two_seconds() -> None:
    async def scene(client: RemoteClient) -> None:
        await client.ready()
        streams = [client.generate(request(f"r{n}", max_tokens=FOREVER)) for n in range(5)]
        for stream in streams:
            await anext(stream)
        rest = [asyncio.create_task(collect_rest(stream)) for stream in streams]
        killed_s = time.monotonic()
        os.kill(client.pid, signal.SIGKILL)
        answers = await asyncio.gather(*rest, return_exceptions=True)
        assert time.monotonic() - killed_s < 2
        assert [type(answer) for answer in answers] == [EngineDeadError] * 5
        reason = client.health().reason or ""
        assert client.health().stage == "dead" and "signal 9 (SIGKILL)" in reason
        assert "the last line, on standard error" in reason
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await collect(client, request("late"))

    play(scene, "chatty")


async def collect_rest(stream: object) -> None:
    async for _ in stream:  # type: ignore[attr-defined]
        pass


def test_a_death_is_seen_even_while_a_grandchild_holds_the_output() -> None:
    async def scene(client: RemoteClient) -> None:
        await client.ready()
        answer = asyncio.create_task(collect(client, request(max_tokens=FOREVER)))
        await client.stats()
        killed_s = time.monotonic()
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError):
            await answer
        assert time.monotonic() - killed_s < 2

    play(scene, "with_child")


def test_the_engine_s_output_goes_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    async def scene(client: RemoteClient) -> None:
        await client.ready()

    play(scene, "chatty")
    out, err = capfd.readouterr()
    assert out == ""
    assert "a line on standard output" in err and "the last line, on standard error" in err


def test_a_config_error_is_raised_as_itself() -> None:
    async def scene(client: RemoteClient) -> None:
        with pytest.raises(CheckpointError) as caught:
            await client.ready()
        error = caught.value
        assert error.sentence() == "Model 'some/model' has no tokenizer. Add tokenizer.json."
        assert (error.param, error.exit_code) == ("model", 2)
        assert client.health().reason == "Model 'some/model' has no tokenizer."

    play(scene, "refusing", EngineConfig(model="some/model"))


@pytest.mark.parametrize(
    ("loader", "says"),
    [("exiting", "ended with exit code 9; its last line was: out of memory"), ("missing", "no attribute 'missing'")],
)
def test_a_load_that_ends_in_any_other_way_says_how(loader: str, says: str) -> None:
    async def scene(client: RemoteClient) -> None:
        with pytest.raises(Exception, match=re.escape(says)):
            await client.ready()
        assert says in (client.health().reason or "")

    play(scene, loader)


def test_shutdown_does_not_wait_for_a_load_that_hangs() -> None:
    async def scene(client: RemoteClient) -> None:
        while client.health().percent != 7:
            await asyncio.sleep(0.005)
        assert client.health().stage == "loading"

    started_s = time.monotonic()
    play(scene, "endless")
    assert time.monotonic() - started_s < 10


def test_shutdown_aborts_what_runs() -> None:
    async def scene(client: RemoteClient) -> None:
        await client.ready()
        stream = client.generate(request("a", max_tokens=FOREVER))
        heard = [await anext(stream)]
        ending = asyncio.create_task(client.shutdown())
        heard += [delta async for delta in stream]
        assert heard[-1].finish_reason == "abort"
        await ending
        assert client.health().reason == "The engine was shut down."

    play(scene)


def test_interrupts_are_left_to_the_parent() -> None:
    async def scene(client: RemoteClient) -> None:
        await client.ready()
        os.kill(client.pid, signal.SIGINT)
        os.kill(client.pid, signal.SIGTERM)
        assert tokens(await collect(client, request())) == tokens_alone(request(), 1000)
        assert os.getpgid(client.pid) != os.getpgid(0)

    play(scene)


def test_a_malformed_event_is_survived() -> None:
    async def scene(client: RemoteClient) -> None:
        await client.ready()
        with zmq.Context() as context, context.socket(zmq.PUSH) as stranger:
            stranger.connect(f"ipc://{client._socket_dir}/events")
            stranger.send(b"\xc1 nonsense")
            assert tokens(await collect(client, request())) == tokens_alone(request(), 1000)

    play(scene)


def test_a_request_that_the_engine_cannot_read_is_refused() -> None:
    async def scene(client: RemoteClient) -> None:
        await client.ready()
        bad = request("bad")
        msgspec.structs.force_setattr(bad.sampling, "top_k", 20.5)
        with pytest.raises(TamisError, match="top_k"):
            await collect(client, bad)
        assert tokens(await collect(client, request("bad"))) == tokens_alone(request(), 1000)

    play(scene)


def test_a_request_that_the_wire_cannot_hold_is_not_left_open() -> None:
    async def scene(client: RemoteClient) -> None:
        await client.ready()
        huge = request("huge")
        huge.priority = 2**64
        with pytest.raises(OverflowError):
            await collect(client, huge)
        assert tokens(await collect(client, request("huge"))) == tokens_alone(request(), 1000)

    play(scene)


def test_an_unreadable_command_ends_the_engine_with_an_answer_to_everybody() -> None:
    async def scene(client: RemoteClient) -> None:
        await client.ready()
        answer = asyncio.create_task(collect(client, request(max_tokens=FOREVER)))
        await client.stats()
        client._commands.send(b"\xc1 nonsense")
        with pytest.raises(EngineDeadError, match="10 bytes cannot be read"):
            await answer

    client = play(scene)
    assert "10 bytes cannot be read" in (client.health().reason or "")
    assert client._process.returncode == 1


def test_the_sockets_are_this_user_s_alone() -> None:
    async def scene(client: RemoteClient) -> None:
        assert os.stat(client._socket_dir).st_mode & 0o777 == 0o700

    play(scene)


def test_a_temporary_folder_with_a_long_name_is_avoided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))

    async def scene(client: RemoteClient) -> None:
        await client.ready()
        assert not client._socket_dir.startswith(str(long))

    play(scene)


PARENT = """
import asyncio, sys
from tamis.config import EngineConfig
from tamis.wire.client import RemoteClient

async def main():
    client = RemoteClient(EngineConfig(), loader="tests.wire.fake_loaders:quick")
    await client.ready()
    print(client.pid, client._socket_dir, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "terminated"])
def test_the_engine_does_not_outlive_its_parent(how: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    with parent.stdout as output:
        pid, socket_dir = output.readline().decode().split()
        engine = os.pidfd_open(int(pid))
        parent.send_signal(how)
        parent.wait(10)
        poller = zmq.Poller()
        poller.register(engine, zmq.POLLIN)
        assert poller.poll(5000), "the engine is still there"
    os.close(engine)
    assert not os.path.exists(socket_dir)
