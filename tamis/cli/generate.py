"""`tamis generate`: one prompt, in this process."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tamis.errors import InvalidRequestError

if TYPE_CHECKING:
    from tamis.engine.sampling_params import SamplingParams
    from tamis.frontend.llm import LLM
    from tamis.frontend.outputs import CompletionOutput

DEFAULT_MAX_TOKENS = 256


@dataclass(frozen=True)
class Timing:
    """Wall-clock seconds of one generation.

    Attributes:
        load_s: from start to a loaded model.
        ttft_s: from the prompt to its first token.
        total_s: from the prompt to its last token.
        tokens_per_s: rate after the first token; of all tokens when there is only one.
    """

    load_s: float
    ttft_s: float
    total_s: float
    tokens_per_s: float


def generate(
    engine: Mapping[str, Any],
    sampling: Mapping[str, Any],
    *,
    prompt: str,
    as_json: bool,
    as_chat: bool,
    system: str | None,
) -> int:
    """Complete `prompt` ("-" reads stdin) and print text, or one JSON object, on stdout; returns the exit code.

    Args:
        engine: fields of `EngineConfig`.
        sampling: fields of `SamplingParams`, those given.
        prompt: text, or the user's message with `as_chat`.
        as_json: print JSON when done instead of text as it comes.
        as_chat: apply the chat template.
        system: the chat's system message.
    """
    if system is not None and not as_chat:
        raise InvalidRequestError("--system needs a chat.", param="system", hint="Add --chat.")
    text = _read_stdin() if prompt == "-" else prompt
    from tamis.frontend.llm import LLM

    started_s = time.perf_counter()
    with LLM(progress=True, **engine) as llm:
        load_s = time.perf_counter() - started_s
        ids = _chat_ids(llm, text, system) if as_chat else llm.get_tokenizer().encode(text, add_special_tokens=True)
        params = sampling_params(llm, sampling, room_tokens=llm.info.max_model_len - len(ids))
        completion, timing = _run(llm, ids, params, load_s, show=not as_json)
        if as_json:
            print(json.dumps(_report(llm, ids, completion, timing), ensure_ascii=False))
        else:
            print(flush=True)
            print(f"{len(completion.token_ids)} tokens, {timing.tokens_per_s:.1f} tokens/s", file=sys.stderr)
    return 0


def sampling_params(llm: LLM, given: Mapping[str, Any], *, room_tokens: int | None = None) -> SamplingParams:
    """The checkpoint's defaults with the given fields over them.

    Args:
        llm: the model.
        given: fields of `SamplingParams`.
        room_tokens: what the context leaves; without max_tokens the output is this long at most, and no longer than
            `DEFAULT_MAX_TOKENS`. None leaves it as long as the context.
    """
    from tamis.engine.sampling_params import SamplingParams

    values = {"max_tokens": None, **llm.sampling_defaults, **given}
    values["stop"] = list(values.get("stop", ()))
    if values["max_tokens"] is None and room_tokens is not None:
        values["max_tokens"] = max(1, min(DEFAULT_MAX_TOKENS, room_tokens))
    return SamplingParams(**values)


def _chat_ids(llm: LLM, text: str, system: str | None) -> list[int]:
    messages = [{"role": "system", "content": system}] if system is not None else []
    return llm.tokenizer.encode_pieces(llm.template.render_pieces([*messages, {"role": "user", "content": text}]))


def _run(
    llm: LLM, ids: list[int], params: SamplingParams, load_s: float, *, show: bool
) -> tuple[CompletionOutput, Timing]:
    from tamis.frontend.outputs import CompletionOutput

    completion = CompletionOutput(index=0)
    started_s = time.perf_counter()
    ttft_s: float | None = None
    for delta in llm.stream(ids, params):
        if ttft_s is None and delta.token_ids:
            ttft_s = time.perf_counter() - started_s
        completion.add(delta)
        if show:
            print(delta.text, end="", flush=True)
    total_s = time.perf_counter() - started_s
    count = len(completion.token_ids)
    first_s = total_s if ttft_s is None else ttft_s
    rate = (count - 1) / (total_s - first_s) if count > 1 and total_s > first_s else count / total_s
    return completion, Timing(load_s, first_s, total_s, rate)


def _report(llm: LLM, ids: list[int], completion: CompletionOutput, timing: Timing) -> dict[str, Any]:
    return {
        "model": llm.name,
        "text": completion.text,
        "token_ids": completion.token_ids,
        "prompt_token_ids": ids,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "timing": {
            "load_s": round(timing.load_s, 4),
            "ttft_s": round(timing.ttft_s, 4),
            "total_s": round(timing.total_s, 4),
            "tokens_per_s": round(timing.tokens_per_s, 2),
        },
    }


def _read_stdin() -> str:
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"stdin holds byte 0x{data[error.start]:02x} at offset {error.start}, which is not UTF-8.", param="prompt"
        ) from error
