from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.server.harness import ANSWER, assert_error, in_process, sse_events


def chat(folder: Path, **fields: Any) -> tuple[dict[str, Any], Any]:
    """A chat's answer and what the engine got."""

    async def run() -> tuple[dict[str, Any], Any]:
        async with in_process(folder) as server:
            response = await server.chat(**fields)
            assert response.status_code == 200, response.text
            return response.json(), server.engine.seen

    return asyncio.run(run())


def stream(folder: Path, path: str = "/v1/chat/completions", **fields: Any) -> list[Any]:
    """The events of a streamed chat."""

    async def run() -> list[Any]:
        async with in_process(folder) as server:
            response = await server.chat(stream=True, **fields)
            assert response.status_code == 200, response.text
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert response.headers["cache-control"] == "no-cache"
            assert response.headers["x-accel-buffering"] == "no"
            return sse_events(response.text)

    return asyncio.run(run())


def test_answer_is_openai_chat_completion(folder: Path) -> None:
    answer, seen = chat(folder)
    prompt_tokens = len(seen[0].prompt_token_ids)

    assert answer.pop("id").startswith("chatcmpl-")
    assert answer.pop("created") > 1_700_000_000
    assert answer == {
        "object": "chat.completion",
        "model": "nano",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": ANSWER, "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(ANSWER.encode()) + 1,
            "total_tokens": prompt_tokens + len(ANSWER.encode()) + 1,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def test_prompt_is_the_rendered_template(folder: Path) -> None:
    async def run() -> None:
        async with in_process(folder) as server:
            await server.chat(messages=[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}])
            prompt = server.tokenizer.decode(server.engine.seen[0].prompt_token_ids, skip_special_tokens=False)
            assert prompt.endswith("]~b]user\nHi[e~[\n]~b]ai\n")

    asyncio.run(run())


def test_cached_tokens_are_reported(folder: Path) -> None:
    answer, _ = chat(folder, messages=[{"role": "user", "content": "x" * 200}])
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 128


def test_max_tokens_ends_with_length(folder: Path) -> None:
    answer, _ = chat(folder, max_completion_tokens=6)
    assert answer["choices"][0]["message"]["content"] == ANSWER[:6]
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize("stop", ["128", ["tokens", "128"]], ids=["string", "list"])
def test_stop_string_ends_the_text_and_the_request(folder: Path, stop: Any) -> None:
    async def run() -> None:
        async with in_process(folder) as server:
            choice = (await server.chat(stop=stop)).json()["choices"][0]
            assert choice["message"]["content"] == "Blocks of "
            assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "128")
            assert len(server.engine.aborted) == 1

    asyncio.run(run())


def test_n_gives_n_choices_with_their_own_seeds(folder: Path) -> None:
    answer, seen = chat(folder, n=3, seed=7, max_tokens=4)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert sorted(request.sampling.seed for request in seen) == [7, 8, 9]
    assert answer["usage"]["completion_tokens"] == 12
    assert answer["usage"]["prompt_tokens"] == len(seen[0].prompt_token_ids)


def test_logprobs_have_tokens_bytes_and_alternatives(folder: Path) -> None:
    answer, _ = chat(folder, logprobs=True, top_logprobs=2, max_tokens=3)
    content = answer["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == list(ANSWER[:3])
    assert content[0]["bytes"] == list(ANSWER[0].encode())
    assert content[0]["logprob"] == -0.5
    assert [alternative["logprob"] for alternative in content[0]["top_logprobs"]] == [-0.5, -1.5]


def test_every_sampling_field_reaches_the_engine(folder: Path) -> None:
    _, seen = chat(
        folder,
        temperature=0,
        top_p=0.5,
        top_k=3,
        min_p=0.1,
        presence_penalty=0.2,
        frequency_penalty=-0.3,
        repetition_penalty=1.1,
        seed=-5,
        stop_token_ids=[3],
        ignore_eos=True,
        min_tokens=2,
        max_tokens=9,
        logit_bias={"5": -100, "7": 2.5},
        priority=-2,
        cache_salt="tenant",
    )
    sampling = seen[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.0, 0.5, 3, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.2, -0.3, 1.1)
    assert (sampling.seed, sampling.stop_token_ids, sampling.ignore_eos) == (-5, [3], True)
    assert (sampling.min_tokens, sampling.max_tokens) == (2, 9)
    assert sampling.logit_bias[5] == -100.0 and sampling.logit_bias[7] == 2.5
    assert (seen[0].priority, seen[0].cache_salt) == (-2, "tenant")


def test_checkpoint_defaults_apply_where_the_request_says_nothing(folder: Path) -> None:
    _, seen = chat(folder, temperature=None, top_k=5)
    assert (seen[0].sampling.temperature, seen[0].sampling.top_k, seen[0].sampling.top_p) == (0.7, 5, 1.0)


def test_max_tokens_left_out_means_the_rest_of_the_context(folder: Path) -> None:
    _, seen = chat(folder)
    assert seen[0].sampling.max_tokens == 1024 - len(seen[0].prompt_token_ids)


def test_labels_and_harmless_values_change_nothing(folder: Path) -> None:
    answer, _ = chat(
        folder,
        user="u",
        metadata={"a": "b"},
        response_format={"type": "text"},
        modalities=["text"],
        store=False,
        best_of=1,
        service_tier="auto",
        tools=None,
        functions=None,
    )
    assert answer["choices"][0]["message"]["content"] == ANSWER


@pytest.mark.parametrize(("tool_choice", "rendered"), [(None, True), ("none", False)], ids=["absent", "none"])
def test_tools_are_rendered_unless_tool_choice_is_none(folder: Path, tool_choice: str | None, rendered: bool) -> None:
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}

    async def run() -> None:
        async with in_process(folder) as server:
            response = await server.chat(tools=[tool], tool_choice=tool_choice)
            assert response.status_code == 200, response.text
            prompt = server.tokenizer.decode(server.engine.seen[0].prompt_token_ids, skip_special_tokens=False)
            assert ("get_weather" in prompt) is rendered

    asyncio.run(run())


def test_continue_final_message_ends_the_prompt_inside_it(folder: Path) -> None:
    async def run() -> None:
        async with in_process(folder) as server:
            messages = [{"role": "user", "content": "Count"}, {"role": "assistant", "content": "one, two"}]
            response = await server.chat(messages=messages, continue_final_message=True)
            assert response.status_code == 200, response.text
            prompt = server.tokenizer.decode(server.engine.seen[0].prompt_token_ids, skip_special_tokens=False)
            assert prompt.endswith("one, two")

    asyncio.run(run())


def test_template_kwargs_reach_the_template(folder: Path) -> None:
    async def run() -> None:
        async with in_process(folder) as server:
            await server.chat(chat_template_kwargs={"thinking_mode": "disabled"})
            prompt = server.tokenizer.decode(server.engine.seen[0].prompt_token_ids, skip_special_tokens=False)
            assert prompt.endswith("]~b]ai\n</mm:think>")

    asyncio.run(run())


def test_stream_has_role_text_finish_reason_and_done(folder: Path) -> None:
    events = stream(folder)
    assert events[-1] == "[DONE]"
    chunks = events[:-1]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == ANSWER
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert all("usage" not in chunk for chunk in chunks)


def test_stream_usage_comes_last_without_choices(folder: Path) -> None:
    events = stream(folder, stream_options={"include_usage": True})
    *chunks, last, done = events
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == len(ANSWER.encode()) + 1
    assert all(chunk["usage"] is None for chunk in chunks)


def test_stream_continuous_usage_grows(folder: Path) -> None:
    events = stream(folder, max_tokens=3, stream_options={"continuous_usage_stats": True})
    assert [event["usage"]["completion_tokens"] for event in events[1:-1]] == [1, 2, 3]


def test_stream_of_n_choices_gives_each_its_role_and_text(folder: Path) -> None:
    texts = {0: "", 1: ""}
    roles = []
    for event in stream(folder, n=2)[:-1]:
        choice = event["choices"][0]
        texts[choice["index"]] += choice["delta"].get("content", "")
        roles += [choice["index"]] if "role" in choice["delta"] else []
    assert texts == {0: ANSWER, 1: ANSWER}
    assert sorted(roles) == [0, 1]


def test_stream_logprobs_cover_every_token(folder: Path) -> None:
    events = stream(folder, logprobs=True, max_tokens=4)
    tokens = [
        entry["token"]
        for event in events[:-1]
        if event["choices"][0]["logprobs"]
        for entry in event["choices"][0]["logprobs"]["content"]
    ]
    assert tokens == list(ANSWER[:4])


def test_overload_is_429_with_retry_after_also_for_streams(folder: Path) -> None:
    async def run() -> None:
        async with in_process(folder) as server:
            server.engine.overloaded = True
            for is_stream in (False, True):
                response = await server.chat(stream=is_stream)
                assert assert_error(response, 429)["code"] == "overloaded"
                assert response.headers["retry-after"] == "3"

    asyncio.run(run())
