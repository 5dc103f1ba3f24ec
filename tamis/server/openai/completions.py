"""POST /v1/completions: text or token ids in, one or many."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tamis.errors import InvalidRequestError, UnsupportedError
from tamis.server.body import read_json_object
from tamis.server.disconnect import until_gone
from tamis.server.openai.fields import check_object, show
from tamis.server.openai.generation import Generation
from tamis.server.openai.logprobs import completion_logprobs
from tamis.server.openai.protocol import COMPLETION_REFUSED, CompletionRequest, StreamOptions, stream_options
from tamis.server.openai.sampling import MAX_CHOICES, sampling_params
from tamis.server.openai.streaming import EventStream
from tamis.server.service import Served, Service

DEFAULT_MAX_TOKENS = 16


async def create_completion(request: Request) -> Response:
    """Continue one or more prompts, whole or as a stream. Errors are `TamisError`s, raised."""
    service: Service = request.app.state.service
    service.ready()
    body = await read_json_object(request, service.config.max_body_bytes)
    completion = check_object(body, CompletionRequest, refused=COMPLETION_REFUSED)
    options = stream_options(completion)
    served = service.model(completion.model)
    prompts = parse_prompts(completion.prompt)
    if completion.echo and completion.logprobs is not None:
        raise UnsupportedError(
            f"echo is true and logprobs is {completion.logprobs}, but prompt tokens have no log-probabilities here.",
            param="echo",
            hint="Leave one of them out.",
        )
    token_ids = [await served.frontend.encode_text(p) if isinstance(p, str) else p for p in prompts]
    sampling = sampling_params(
        completion,
        served,
        prompts=token_ids,
        max_tokens=completion.max_tokens,
        logprobs=completion.logprobs,
        default_max_tokens=DEFAULT_MAX_TOKENS,
    )
    generation = Generation(
        served,
        service.metrics,
        token_ids,
        sampling,
        id_prefix="cmpl-",
        priority=completion.priority,
        cache_salt=completion.cache_salt,
    )
    answer = _Answer(generation, served.name, _echoes(completion, prompts, served), completion.logprobs is not None)
    if completion.stream:
        return EventStream(answer.chunks(options), ping_interval_s=service.config.ping_interval_s)
    whole = await until_gone(request.receive, answer.whole())
    return Response(msgspec.json.encode(whole), media_type="application/json")


def parse_prompts(prompt: Any) -> list[str | list[int]]:
    """The prompts of a request: a string, strings, a list of token ids, or lists of them.

    Raises:
        InvalidRequestError: another type, a mixture, an empty list, too many.
    """
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list):
        raise _wrong_type("prompt", prompt)
    if not prompt:
        raise InvalidRequestError("prompt is empty.", param="prompt", hint="Send text or token ids.")
    if type(prompt[0]) is int:
        _check_ids(prompt, "prompt")
        return [prompt]
    if len(prompt) > MAX_CHOICES:
        raise InvalidRequestError(
            f"prompt has {len(prompt)} entries, but at most {MAX_CHOICES} are accepted.",
            param="prompt",
            hint="Send several requests.",
        )
    for i, entry in enumerate(prompt):
        if type(entry) is not type(prompt[0]) or not isinstance(entry, (str, list)):
            raise _wrong_type(f"prompt[{i}]", entry)
        if isinstance(entry, list):
            _check_ids(entry, f"prompt[{i}]")
    return list(prompt)


def _check_ids(ids: list[Any], path: str) -> None:
    # One pass in C: a body may hold millions of ids. bool is an int to isinstance, not here.
    if set(map(type, ids)) <= {int}:
        return
    at = next(i for i, token_id in enumerate(ids) if type(token_id) is not int)
    raise _wrong_type(f"{path}[{at}]", ids[at])


def _wrong_type(path: str, value: Any) -> InvalidRequestError:
    return InvalidRequestError(
        f"{path} is {show(value)}, but prompt must be a string, an array of strings, an array of integers or an array "
        "of arrays of integers.",
        param=path,
        code="invalid_type",
    )


def _echoes(completion: CompletionRequest, prompts: list[str | list[int]], served: Served) -> list[str]:
    """What each prompt's answers start with."""
    if not completion.echo:
        return [""] * len(prompts)
    tokenizer = served.frontend.tokenizer
    skip = completion.skip_special_tokens
    return [p if isinstance(p, str) else tokenizer.decode(p, skip_special_tokens=skip) for p in prompts]


class _Answer:
    """The answer's JSON, in one piece or in chunks."""

    def __init__(self, generation: Generation, model: str, echoes: list[str], wants_logprobs: bool):
        self._generation = generation
        self._model = model
        self._echoes = echoes
        self._wants_logprobs = wants_logprobs

    async def whole(self) -> dict[str, Any]:
        choices = await self._generation.choices()
        listed = [
            {
                "index": index,
                "text": self._echo(index) + choice.text,
                "logprobs": completion_logprobs(choice.logprobs, 0) if self._wants_logprobs else None,
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop_reason,
            }
            for index, choice in enumerate(choices)
        ]
        return self._object(listed) | {"usage": self._generation.usage()}

    async def chunks(self, options: StreamOptions) -> AsyncGenerator[dict[str, Any]]:
        shown: dict[int, int] = {}  # choice → characters of its logprobs' tokens so far
        async with aclosing(self._generation.deltas()) as deltas:
            async for delta in deltas:
                text = delta.text if delta.index in shown else self._echo(delta.index) + delta.text
                offset = shown.setdefault(delta.index, 0)
                shown[delta.index] += sum(len(p.chosen.text) for p in delta.logprobs or [])
                if not (text or delta.logprobs or delta.finish_reason):
                    continue
                logprobs = None
                if self._wants_logprobs and delta.logprobs:
                    logprobs = completion_logprobs(delta.logprobs, offset)
                choice = {
                    "index": delta.index,
                    "text": text,
                    "logprobs": logprobs,
                    "finish_reason": delta.finish_reason,
                    "stop_reason": delta.stop_reason,
                }
                event = self._object([choice])
                if options.continuous_usage_stats:
                    event["usage"] = self._generation.usage()
                elif options.include_usage:
                    event["usage"] = None
                yield event
        if options.include_usage:
            yield self._object([]) | {"usage": self._generation.usage()}

    def _echo(self, choice: int) -> str:
        return self._echoes[choice // self._generation.sampling.n]

    def _object(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._generation.id,
            "object": "text_completion",
            "created": self._generation.created,
            "model": self._model,
            "choices": choices,
        }
