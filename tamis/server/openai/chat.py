"""POST /v1/chat/completions."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tamis.engine.sampling_params import MAX_LOGPROBS
from tamis.errors import InvalidRequestError, UnsupportedError
from tamis.server.body import read_json_object
from tamis.server.disconnect import until_gone
from tamis.server.openai.fields import check_object, show
from tamis.server.openai.generation import Choice, Generation
from tamis.server.openai.logprobs import chat_logprobs
from tamis.server.openai.messages import check_messages, check_names
from tamis.server.openai.protocol import CHAT_REFUSED, ChatRequest, StreamOptions, stream_options
from tamis.server.openai.sampling import sampling_params
from tamis.server.openai.streaming import EventStream
from tamis.server.openai.tools import check_tools
from tamis.server.service import Served, Service


async def create_chat_completion(request: Request) -> Response:
    """Answer a chat, whole or as a stream. Errors are `TamisError`s, raised."""
    service: Service = request.app.state.service
    service.ready()
    body = await read_json_object(request, service.config.max_body_bytes)
    chat = check_object(body, ChatRequest, refused=CHAT_REFUSED)
    options = stream_options(chat)
    served = service.model(chat.model)
    generation = await _start(chat, served, service)
    if chat.stream:
        events = _chunks(generation, served.name, options, wants_logprobs=chat.logprobs)
        return EventStream(events, ping_interval_s=service.config.ping_interval_s)
    choices = await until_gone(request.receive, generation.choices())
    return Response(
        msgspec.json.encode(_completion(generation, served.name, choices, wants_logprobs=chat.logprobs)),
        media_type="application/json",
    )


async def _start(chat: ChatRequest, served: Served, service: Service) -> Generation:
    _check_tool_choice(chat)
    opens_turn = not chat.continue_final_message if chat.add_generation_prompt is None else chat.add_generation_prompt
    messages = check_messages(chat.messages, continue_final_message=chat.continue_final_message)
    tools = check_tools(chat.tools)
    encode = functools.partial(
        served.frontend.encode_chat,
        tools=None if chat.tool_choice == "none" else tools,
        template_kwargs=chat.chat_template_kwargs,
        add_generation_prompt=opens_turn,
        continue_final_message=chat.continue_final_message,
    )
    prompt = await encode(messages)
    await check_names(messages, prompt, encode)
    sampling = sampling_params(
        chat, served, prompts=[prompt], max_tokens=_max_tokens(chat), logprobs=_num_logprobs(chat)
    )
    return Generation(
        served,
        service.metrics,
        [prompt],
        sampling,
        id_prefix="chatcmpl-",
        priority=chat.priority,
        cache_salt=chat.cache_salt,
    )


def _max_tokens(chat: ChatRequest) -> int | None:
    if chat.max_tokens is None or chat.max_completion_tokens is None or chat.max_tokens == chat.max_completion_tokens:
        return chat.max_tokens if chat.max_completion_tokens is None else chat.max_completion_tokens
    raise InvalidRequestError(
        f"max_tokens is {chat.max_tokens}, but max_completion_tokens is {chat.max_completion_tokens}.",
        param="max_tokens",
        hint="They mean the same: send one.",
    )


def _num_logprobs(chat: ChatRequest) -> int | None:
    if chat.top_logprobs is not None and not chat.logprobs:
        raise InvalidRequestError(
            f"top_logprobs is {chat.top_logprobs}, but logprobs is not true.",
            param="top_logprobs",
            hint="Set logprobs to true, or leave both out.",
        )
    if chat.top_logprobs is not None and not 0 <= chat.top_logprobs <= MAX_LOGPROBS:
        raise InvalidRequestError(
            f"top_logprobs is {chat.top_logprobs}, but must be from 0 to {MAX_LOGPROBS}.", param="top_logprobs"
        )
    return (chat.top_logprobs or 0) if chat.logprobs else None


def _check_tool_choice(chat: ChatRequest) -> None:
    if chat.tool_choice not in (None, "none"):
        raise UnsupportedError(
            f"tool_choice is {show(chat.tool_choice)}, but tool calls are not parsed by this server.",
            param="tool_choice",
            hint="Leave it out to have the tools in the prompt and read calls from the content, or use 'none'.",
        )


def _completion(generation: Generation, model: str, choices: list[Choice], *, wants_logprobs: bool) -> dict[str, Any]:
    return {
        "id": generation.id,
        "object": "chat.completion",
        "created": generation.created,
        "model": model,
        "choices": [
            {
                "index": index,
                "message": {"role": "assistant", "content": choice.text, "refusal": None},
                "logprobs": chat_logprobs(choice.logprobs) if wants_logprobs else None,
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop_reason,
            }
            for index, choice in enumerate(choices)
        ],
        "usage": generation.usage(),
    }


async def _chunks(
    generation: Generation, model: str, options: StreamOptions, *, wants_logprobs: bool
) -> AsyncGenerator[dict[str, Any]]:
    """The stream's events: for each choice its role, its text as it comes, its finish reason; then the usage."""

    def chunk(choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> dict[str, Any]:
        event = {
            "id": generation.id,
            "object": "chat.completion.chunk",
            "created": generation.created,
            "model": model,
            "choices": choices,
        }
        if options.continuous_usage_stats:
            usage = generation.usage()
        # OpenAI sends null in every chunk but the last when usage was asked for, and no field when not.
        return event | {"usage": usage} if options.include_usage or usage else event

    has_role: set[int] = set()
    async with aclosing(generation.deltas()) as deltas:
        async for delta in deltas:
            if delta.index not in has_role:
                has_role.add(delta.index)
                role = {"role": "assistant", "content": ""}
                yield chunk([{"index": delta.index, "delta": role, "logprobs": None, "finish_reason": None}])
            if not (delta.text or delta.logprobs or delta.finish_reason):
                continue
            choice = {
                "index": delta.index,
                "delta": {"content": delta.text} if delta.text else {},
                "logprobs": chat_logprobs(delta.logprobs) if wants_logprobs and delta.logprobs else None,
                "finish_reason": delta.finish_reason,
            }
            if delta.finish_reason is not None:
                choice["stop_reason"] = delta.stop_reason
            yield chunk([choice])
    if options.include_usage:
        yield chunk([], generation.usage())
