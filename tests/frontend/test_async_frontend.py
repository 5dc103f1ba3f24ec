from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest

from tamis.config import EngineConfig
from tamis.engine.client import Health
from tamis.engine.messages import EngineInfo, EngineRequest, EngineStats, ErrorInfo, RequestDelta
from tamis.engine.sampling_params import SamplingParams
from tamis.errors import ContextLengthError, InvalidRequestError, TamisError
from tamis.frontend.async_frontend import OFF_LOOP_CHARS, AsyncFrontend
from tamis.frontend.sequence import TextDelta
from tamis.frontend.text_side import load_text_side

INFO = EngineInfo(
    model="m",
    vocab_size=400,
    max_model_len=20_000,
    num_blocks=8,
    block_size=128,
    max_num_seqs=4,
    max_num_batched_tokens=64,
)


class FakeClient:
    """Says the script's deltas of a request; None in a script waits until the test is over."""

    def __init__(self, scripts: dict[str, list[RequestDelta | None]]) -> None:
        self.scripts = scripts
        self.submitted: list[EngineRequest] = []
        self.aborted: list[str] = []

    def health(self) -> Health:
        return Health(stage="ready")

    async def ready(self) -> EngineInfo:
        return INFO

    async def generate(self, request: EngineRequest) -> AsyncGenerator[RequestDelta]:
        self.submitted.append(request)
        done = False
        try:
            for delta in self.scripts[request.request_id]:
                if delta is None:
                    await asyncio.Event().wait()
                else:
                    await asyncio.sleep(0)
                    done = delta.finish_reason is not None
                    yield delta
        finally:
            if not done:
                self.aborted.append(request.request_id)

    async def stats(self) -> EngineStats:
        return EngineStats()

    async def shutdown(self) -> None:
        pass


def frontend_of(folder: Path, **scripts: list[RequestDelta | None]) -> tuple[AsyncFrontend, FakeClient]:
    client = FakeClient({name.replace("_", "-"): script for name, script in scripts.items()})
    text = load_text_side(EngineConfig(), folder)
    return AsyncFrontend(client, text.tokenizer, text.template, sampling_defaults=text.sampling_defaults), client


def says(frontend: AsyncFrontend, text: str, finish: str | None = None) -> RequestDelta:
    return RequestDelta(request_id="-", token_ids=frontend.tokenizer.encode(text), finish_reason=finish)  # type: ignore[arg-type]


async def collect(frontend: AsyncFrontend, **sampling) -> list[TextDelta]:
    return [d async for d in frontend.generate([20, 21], SamplingParams(**sampling), request_id="r")]


def test_one_completion_streams_its_text(model_folder: Path) -> None:
    frontend, client = frontend_of(model_folder)
    client.scripts = {"r": [says(frontend, "he"), says(frontend, "llo", "length")]}
    deltas = asyncio.run(collect(frontend))
    assert [(d.index, d.text, d.finish_reason) for d in deltas] == [(0, "he", None), (0, "llo", "length")]
    assert client.aborted == []


def test_n_completions_are_merged_as_they_come(model_folder: Path) -> None:
    frontend, client = frontend_of(model_folder)
    client.scripts = {f"r-{i}": [says(frontend, "a"), says(frontend, str(i), "length")] for i in range(3)}
    deltas = asyncio.run(collect(frontend, n=3))
    texts = {i: "".join(d.text for d in deltas if d.index == i) for i in range(3)}
    assert texts == {0: "a0", 1: "a1", 2: "a2"}
    assert [d.index for d in deltas[:3]] == [0, 1, 2]
    assert client.aborted == []


def test_a_stop_string_aborts_the_engine_request(model_folder: Path) -> None:
    frontend, client = frontend_of(model_folder)
    client.scripts = {"r": [says(frontend, "aST"), None]}
    (delta,) = asyncio.run(collect(frontend, stop=["ST"]))
    assert (delta.text, delta.finish_reason, delta.stop_reason) == ("a", "stop", "ST")
    assert client.aborted == ["r"]


@pytest.mark.parametrize("n", [1, 3])
def test_closing_the_stream_aborts_all_before_aclose_returns(model_folder: Path, n: int) -> None:
    frontend, client = frontend_of(model_folder)
    names = ["r"] if n == 1 else [f"r-{i}" for i in range(n)]
    client.scripts = {name: [says(frontend, "a"), None] for name in names}

    async def leave_early() -> list[str]:
        async with aclosing(frontend.generate([20], SamplingParams(n=n), request_id="r")) as deltas:
            async for _ in deltas:
                break
        return list(client.aborted)

    assert sorted(asyncio.run(leave_early())) == names


@pytest.mark.parametrize("n", [1, 2])
def test_cancelling_the_reader_aborts_all(model_folder: Path, n: int) -> None:
    frontend, client = frontend_of(model_folder)
    names = ["r"] if n == 1 else [f"r-{i}" for i in range(n)]
    client.scripts = {name: [None] for name in names}

    async def cancel() -> None:
        reader = asyncio.create_task(collect(frontend, n=n))
        while len(client.submitted) < n:
            await asyncio.sleep(0)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader

    asyncio.run(cancel())
    assert sorted(client.aborted) == names


def test_an_error_of_one_completion_ends_the_others(model_folder: Path) -> None:
    frontend, client = frontend_of(model_folder)
    error = ErrorInfo(message="boom", code="internal_error", status=500)
    client.scripts = {
        "r-0": [None],
        "r-1": [RequestDelta(request_id="r-1", finish_reason="error", error=error)],
    }
    with pytest.raises(TamisError, match="boom"):
        asyncio.run(collect(frontend, n=2))
    assert client.aborted == ["r-0"]


def test_a_refused_prompt_is_not_submitted(model_folder: Path) -> None:
    frontend, client = frontend_of(model_folder)
    with pytest.raises(InvalidRequestError, match="token id 400"):
        asyncio.run(anext(frontend.generate([400], SamplingParams(), request_id="r")))
    assert client.submitted == []


def test_chat_and_text_become_ids(model_folder: Path) -> None:
    frontend, _ = frontend_of(model_folder)
    tokenizer = frontend.tokenizer
    ids = asyncio.run(frontend.encode_chat([{"role": "user", "content": "hi [e~["}]))
    assert tokenizer.decode(ids, skip_special_tokens=False).endswith("]~b]user\nhi [e~[[e~[\n]~b]ai\n")
    assert asyncio.run(frontend.encode_text("]~b]")) == [tokenizer.added_tokens["]~b]"]]


@pytest.mark.parametrize(("chars", "on_loop"), [(10, True), (OFF_LOOP_CHARS + 1, False)], ids=["short", "long"])
def test_long_text_is_encoded_off_the_loop(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch, chars: int, on_loop: bool
) -> None:
    frontend, _ = frontend_of(model_folder)
    threads: list[int] = []
    encode = frontend.tokenizer.encode
    monkeypatch.setattr(
        frontend.tokenizer, "encode", lambda *a, **k: (threads.append(threading.get_ident()), encode(*a, **k))[1]
    )

    async def both() -> None:
        await frontend.encode_text("x" * chars)
        await frontend.encode_chat([{"role": "user", "content": "x" * chars}])

    asyncio.run(both())
    assert {thread == threading.get_ident() for thread in threads} == {on_loop}


@pytest.mark.parametrize("kind", ["text", "chat"])
def test_hopelessly_long_text_is_refused_without_encoding_it(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    frontend, _ = frontend_of(model_folder)
    monkeypatch.setattr(frontend.tokenizer, "encode", lambda *a, **k: pytest.fail("was encoded"))
    text = "x" * 2_000_000
    encode = frontend.encode_text(text) if kind == "text" else frontend.encode_chat([{"role": "user", "content": text}])
    with pytest.raises(ContextLengthError, match="context is 20000 tokens"):
        asyncio.run(encode)
