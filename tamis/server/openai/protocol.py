"""The request objects of the API. Names and meanings are OpenAI's, beyond them vLLM's; docs/api.md lists both."""

from __future__ import annotations

from typing import Any

import msgspec

from tamis.errors import InvalidRequestError
from tamis.server.openai.fields import Refusal, check_object


class StreamOptions(msgspec.Struct, kw_only=True):
    """`stream_options`.

    Attributes:
        include_usage: a last chunk without choices carries the usage.
        continuous_usage_stats: every chunk carries the usage so far.
    """

    include_usage: bool = False
    continuous_usage_stats: bool = False


class SamplingFields(msgspec.Struct, kw_only=True):
    """What both endpoints take. None means: the checkpoint's generation_config.json, then the usual default.

    `user`, `metadata`, `safety_identifier` and `prompt_cache_key` are labels: accepted, without effect.
    """

    model: str | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    logit_bias: dict[str, float] = {}
    skip_special_tokens: bool = True
    priority: int = 0
    cache_salt: str | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class ChatRequest(SamplingFields, kw_only=True):
    """`POST /v1/chat/completions`.

    Attributes:
        messages: checked by `tamis.server.openai.messages`.
        logprobs, top_logprobs: OpenAI's pair: whether, and how many alternatives (0 to 20).
        max_completion_tokens: the newer name of `max_tokens`.
        tools: rendered by the chat template; the answer is not parsed for calls.
        tool_choice: "none" leaves the tools out of the prompt.
        chat_template_kwargs: variables for the chat template.
        add_generation_prompt: open the model's turn; None means unless `continue_final_message`.
        continue_final_message: leave the last message, an assistant's, open.
    """

    messages: list[Any]
    logprobs: bool = False
    top_logprobs: int | None = None
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] = {}
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False


class CompletionRequest(SamplingFields, kw_only=True):
    """`POST /v1/completions`.

    Attributes:
        prompt: one text, several, one list of token ids, or several; checked by `tamis.server.openai.completions`.
        logprobs: how many alternatives each token gets (0 to 20); None is off.
        echo: the text starts with the prompt.
    """

    prompt: Any
    logprobs: int | None = None
    echo: bool = False


_STRUCTURED = Refusal("Structured output is not available; describe the format in the prompt.")
_LATER = Refusal("Leave it out.")

_REFUSED_BY_BOTH = {
    "allowed_token_ids": Refusal("Use logit_bias."),
    "bad_words": Refusal("Use logit_bias."),
    "best_of": Refusal("Use n and choose among the answers.", (1,)),
    "detokenize": Refusal("Leave it out: text is always returned.", (True,)),
    "guided_choice": _STRUCTURED,
    "guided_decoding_backend": _STRUCTURED,
    "guided_grammar": _STRUCTURED,
    "guided_json": _STRUCTURED,
    "guided_regex": _STRUCTURED,
    "include_stop_str_in_output": Refusal("Leave it out: a stop string ends the text before it.", (False,)),
    "kv_transfer_params": _LATER,
    "length_penalty": Refusal("Beam search is not available.", (1, 1.0)),
    "logits_processors": Refusal("Use logit_bias."),
    "prompt_logprobs": Refusal("Log-probabilities are available for generated tokens only: use logprobs."),
    "request_id": Refusal("Send the X-Request-Id header."),
    "response_format": Refusal(
        "Only the type 'text' is available; describe the format in the prompt.", ({"type": "text"},)
    ),
    "return_token_ids": Refusal("Use logprobs, which lists the tokens.", (False,)),
    "return_tokens_as_token_ids": Refusal("Leave it out.", (False,)),
    "service_tier": Refusal("Use priority.", ("auto", "default")),
    "spaces_between_special_tokens": Refusal("Leave it out.", (True,)),
    "structured_outputs": _STRUCTURED,
    "truncate_prompt_tokens": Refusal("Shorten the prompt before sending it."),
    "use_beam_search": Refusal("Beam search is not available.", (False,)),
    "vllm_xargs": _LATER,
}

CHAT_REFUSED = _REFUSED_BY_BOTH | {
    "add_special_tokens": Refusal("The chat template decides on special tokens.", (False,)),
    "audio": Refusal("This model takes and gives text."),
    "chat_template": Refusal("Templates come from the checkpoint only, as they are code; use chat_template_kwargs."),
    "documents": Refusal("Put the documents into a message."),
    "echo": Refusal("Prepend the prompt yourself.", (False,)),
    "function_call": Refusal("Use tools with tool_choice 'none', or none at all.", ("none",)),
    "functions": Refusal("Use tools."),
    "include_reasoning": Refusal("Reasoning is part of the content.", (True,)),
    "mm_processor_kwargs": Refusal("This model takes and gives text."),
    "modalities": Refusal("This model takes and gives text.", (["text"],)),
    "parallel_tool_calls": Refusal("Calls are not parsed, so the model may write several; leave it out.", (True,)),
    "prediction": _LATER,
    "reasoning_effort": Refusal('Use chat_template_kwargs, such as {"thinking_mode": "enabled"}.'),
    "store": Refusal("Answers are not stored.", (False,)),
    "thinking": Refusal('Use chat_template_kwargs, such as {"thinking_mode": "enabled"}.'),
    "verbosity": Refusal("Ask for it in a message.", ("medium",)),
    "web_search_options": _LATER,
}

COMPLETION_REFUSED = _REFUSED_BY_BOTH | {
    "add_special_tokens": Refusal("Text is encoded as it stands; send token ids for anything else.", (False,)),
    "max_completion_tokens": Refusal("Use max_tokens."),
    "prompt_embeds": Refusal("Send text or token ids."),
    "suffix": Refusal("This model does not fill in the middle; put everything into the prompt.", ("",)),
    "top_logprobs": Refusal("Use logprobs with a number."),
}

STREAM_OPTIONS_REFUSED = {"include_obfuscation": Refusal("Leave it out: chunks are not padded.", (False,))}


def stream_options(request: SamplingFields) -> StreamOptions:
    """The checked `stream_options` of a request; the defaults when it has none.

    Raises:
        InvalidRequestError: options without `stream`, unknown options, wrong types.
    """
    if request.stream_options is None:
        return StreamOptions()
    if not request.stream:
        raise InvalidRequestError(
            "stream_options is set, but stream is not true.",
            param="stream_options",
            hint="Set stream, or leave it out.",
        )
    return check_object(request.stream_options, StreamOptions, refused=STREAM_OPTIONS_REFUSED, path="stream_options.")
