from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.server.harness import ANSWER, assert_error, in_process, sse_events


def complete(folder: Path, **fields: Any) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        async with in_process(folder) as server:
            response = await server.complete(**fields)
            assert response.status_code == 200, response.text
            return response.json()

    return asyncio.run(run())


def test_answer_is_openai_text_completion(folder: Path) -> None:
    answer = complete(folder)
    assert answer.pop("id").startswith("cmpl-")
    assert answer.pop("created") > 1_700_000_000
    assert answer == {
        "object": "text_completion",
        "model": "nano",
        "choices": [{"index": 0, "text": ANSWER[:4], "logprobs": None, "finish_reason": "length", "stop_reason": None}],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 4,
            "total_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


@pytest.mark.parametrize(
    ("prompt", "num_prompts", "prompt_tokens"),
    [
        ("abc", 1, 3),
        (["abc", "de"], 2, 5),
        ([5, 6, 7, 8], 1, 4),
        ([[5, 6], [7]], 2, 3),
    ],
    ids=["text", "texts", "ids", "lists-of-ids"],
)
def test_every_kind_of_prompt_is_taken(folder: Path, prompt: Any, num_prompts: int, prompt_tokens: int) -> None:
    answer = complete(folder, prompt=prompt)
    assert [choice["index"] for choice in answer["choices"]] == list(range(num_prompts))
    assert answer["usage"]["prompt_tokens"] == prompt_tokens
    assert answer["usage"]["completion_tokens"] == 4 * num_prompts


def test_choices_of_several_prompts_are_numbered_prompt_first(folder: Path) -> None:
    answer = complete(folder, prompt=["abc", "de"], n=2, echo=True)
    assert [choice["text"] for choice in answer["choices"]] == [
        "abc" + ANSWER[:4],
        "abc" + ANSWER[:4],
        "de" + ANSWER[:4],
        "de" + ANSWER[:4],
    ]


def test_token_ids_reach_the_engine_as_they_are(folder: Path) -> None:
    async def run() -> None:
        async with in_process(folder) as server:
            await server.complete(prompt=[9, 8, 7])
            assert server.engine.seen[0].prompt_token_ids == [9, 8, 7]

    asyncio.run(run())


def test_max_tokens_left_out_is_16(folder: Path) -> None:
    assert complete(folder, max_tokens=None)["usage"]["completion_tokens"] == 16


def test_max_tokens_left_out_near_the_end_of_the_context_is_what_is_left(folder: Path) -> None:
    answer = complete(folder, prompt=[[5] * 1015, [5] * 3], max_tokens=None)
    assert answer["usage"]["completion_tokens"] == 2 * 9


def test_echo_of_token_ids_is_their_text(folder: Path) -> None:
    async def run() -> None:
        async with in_process(folder) as server:
            ids = server.tokenizer.encode("Zeit")
            answer = (await server.complete(prompt=ids, echo=True)).json()
            assert answer["choices"][0]["text"] == "Zeit" + ANSWER[:4]

    asyncio.run(run())


def test_logprobs_are_four_parallel_lists(folder: Path) -> None:
    logprobs = complete(folder, logprobs=2, max_tokens=3)["choices"][0]["logprobs"]
    assert logprobs["tokens"] == list(ANSWER[:3])
    assert logprobs["token_logprobs"] == [-0.5] * 3
    assert logprobs["text_offset"] == [0, 1, 2]
    assert logprobs["top_logprobs"][0][ANSWER[0]] == -0.5
    assert len(logprobs["top_logprobs"][0]) == 2


@pytest.mark.parametrize("prompt", ["abc", ["abc", "de"]], ids=["one", "two"])
def test_stream_gives_the_whole_answers_text(folder: Path, prompt: Any) -> None:
    async def run() -> None:
        async with in_process(folder) as server:
            fields = {"prompt": prompt, "echo": True, "stop_token_ids": [], "max_tokens": 64}
            whole = (await server.complete(**fields)).json()
            options = {"include_usage": True}
            streamed = sse_events((await server.complete(**fields, stream=True, stream_options=options)).text)
            texts = [""] * len(whole["choices"])
            for event in streamed[:-2]:
                texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
            assert texts == [choice["text"] for choice in whole["choices"]]
            assert streamed[-2]["usage"] == whole["usage"]
            assert streamed[-1] == "[DONE]"

    asyncio.run(run())


def test_streamed_text_offsets_go_on(folder: Path) -> None:
    async def run() -> None:
        async with in_process(folder) as server:
            events = sse_events((await server.complete(logprobs=0, stream=True)).text)
            offsets = [event["choices"][0]["logprobs"]["text_offset"][0] for event in events[:-1]]
            assert offsets == [0, 1, 2, 3]

    asyncio.run(run())


def test_media_tokens_cannot_be_sampled(folder: Path) -> None:
    async def run() -> None:
        async with in_process(folder) as server:
            await server.complete()
            image = server.tokenizer.added_tokens["]<]image[>["]
            assert image in server.engine.seen[0].sampling.barred_token_ids
            for is_stream in (False, True):
                refused = await server.complete(logit_bias={str(image): 5}, stream=is_stream)
                assert str(image) in assert_error(refused, 400)["message"]

    asyncio.run(run())
