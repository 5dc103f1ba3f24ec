"""From a checked request to `SamplingParams`: the request's own values, the checkpoint's, the usual ones."""

from __future__ import annotations

from tamis.engine.sampling_params import SamplingParams
from tamis.errors import InvalidRequestError
from tamis.frontend.sequence import check_prompt
from tamis.server.openai.protocol import SamplingFields
from tamis.server.service import Served

# Answers of one request, over all its prompts.
MAX_CHOICES = 1024

# Fields that a checkpoint's generation_config.json may set.
DEFAULTED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def sampling_params(
    request: SamplingFields,
    served: Served,
    *,
    prompts: list[list[int]],
    max_tokens: int | None,
    logprobs: int | None,
    default_max_tokens: int | None = None,
) -> SamplingParams:
    """Build the parameters for `prompts`, which share them.

    None for `max_tokens` means `default_max_tokens`, or else the checkpoint's, but never more than the context leaves
    after the longest prompt.

    Raises:
        InvalidRequestError: a value out of range, an empty prompt, token ids outside the vocabulary, too many tokens
            asked for.
        ContextLengthError: a prompt, or a prompt and `max_tokens`, does not fit into the context.
    """
    longest = max(prompts, key=len)
    values = dict(served.frontend.sampling_defaults)
    left_tokens = max(1, served.info.max_model_len - len(longest))
    checkpoint_tokens = values.pop("max_tokens", left_tokens)
    default_tokens = min(default_max_tokens or checkpoint_tokens, left_tokens)
    values |= {name: value for name in DEFAULTED if (value := getattr(request, name)) is not None}
    sampling = SamplingParams(
        n=request.n,
        max_tokens=default_tokens if max_tokens is None else max_tokens,
        min_tokens=request.min_tokens,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        seed=request.seed,
        stop=[request.stop] if isinstance(request.stop, str) else request.stop,
        stop_token_ids=request.stop_token_ids,
        ignore_eos=request.ignore_eos,
        logprobs=logprobs,
        logit_bias=_logit_bias(request.logit_bias),
        skip_special_tokens=request.skip_special_tokens,
        **values,
    )
    for prompt in prompts:
        check_prompt(prompt, sampling, served.info)
    if max_tokens is not None:
        asked = f"max_tokens {max_tokens}"
    elif default_tokens == left_tokens:
        asked = f"the rest of the context, {left_tokens}"
    else:
        asked = f"the default of {default_tokens}"
    _check_total(len(prompts), sampling, served.max_request_tokens, asked)
    return sampling


def _check_total(num_prompts: int, sampling: SamplingParams, limit_tokens: int, asked: str) -> None:
    """`asked` says where `sampling.max_tokens` came from."""
    num_choices = num_prompts * sampling.n
    if num_choices > MAX_CHOICES:
        raise InvalidRequestError(
            f"The request asks for {num_choices} answers ({num_prompts} prompts x n {sampling.n}), but at most "
            f"{MAX_CHOICES} are allowed.",
            param="n",
            hint="Send several requests.",
        )
    assert sampling.max_tokens is not None
    total_tokens = num_choices * sampling.max_tokens
    if total_tokens > limit_tokens:
        raise InvalidRequestError(
            f"The request asks for up to {total_tokens} tokens ({num_prompts} prompts x n {sampling.n} x {asked}), "
            f"but at most {limit_tokens} are allowed.",
            param="max_tokens",
            hint="Lower n, or send a lower max_tokens.",
        )


def _logit_bias(bias: dict[str, float]) -> dict[int, float]:
    for key in bias:
        # isdecimal alone would accept digits of other scripts, and "05" would overwrite "5".
        if not (key.isascii() and key.isdecimal() and len(key) <= 10 and str(int(key)) == key):
            raise InvalidRequestError(
                f"logit_bias has the key {key[:40]!r}, but keys must be token ids.", param="logit_bias"
            )
    return {int(key): value for key, value in bias.items()}
