"""How one request is sampled: vLLM's `SamplingParams` names, checked when built."""

from __future__ import annotations

import math

import msgspec

from tamis.errors import InvalidRequestError

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_N = 128


def _refuse(param: str, value: object, limit: str, hint: str | None = None) -> None:
    raise InvalidRequestError(f"{param} is {value!r}, but must be {limit}.", param=param, hint=hint)


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling parameters of one request.

    Attributes:
        n: completions of the same prompt; the frontend turns it into n engine requests.
        max_tokens: most tokens to generate; None means up to the model's context.
        min_tokens: no end-of-turn or stop token before this many tokens.
        temperature: 0 is greedy; otherwise logits are divided by it.
        top_p, min_p: nucleus and minimum-probability cuts, on the tempered distribution.
        top_k: keep the k most likely tokens; 0 or -1 keeps all.
        presence_penalty, frequency_penalty: subtracted over *output* tokens, as OpenAI defines them.
        repetition_penalty: multiplicative, over prompt and output tokens, 0.01 to 10; 1 is off.
        seed: with it a request's tokens are a function of the request alone; None draws one at admission.
        stop: strings that end the text (not included in it).
        stop_token_ids: token ids that end the text.
        ignore_eos: go on after the model's end-of-turn token.
        logprobs: None is off; k also reports the k most likely tokens of each position (0 to 20).
        logit_bias: token id → added to its logit, -100 to 100.
        skip_special_tokens: leave special tokens out of the text.

    Raises:
        InvalidRequestError: naming the field, the value and the limit.
    """

    n: int = 1
    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: list[str] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    logprobs: int | None = None
    logit_bias: dict[int, float] = {}
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.n <= MAX_N:
            _refuse("n", self.n, f"from 1 to {MAX_N}")
        if self.max_tokens is not None and self.max_tokens < 1:
            _refuse("max_tokens", self.max_tokens, "at least 1")
        if self.min_tokens < 0 or (self.max_tokens is not None and self.min_tokens > self.max_tokens):
            _refuse("min_tokens", self.min_tokens, f"from 0 to max_tokens ({self.max_tokens})")
        self._check_range("temperature", 0.0, 2.0, "Use 0 for greedy decoding.")
        if not 0.0 < self.top_p <= 1.0:
            _refuse("top_p", self.top_p, "over 0 and at most 1", "Use 1 to keep every token.")
        if self.top_k < -1:
            _refuse("top_k", self.top_k, "-1, 0 (both keep every token) or more")
        self._check_range("min_p", 0.0, 1.0)
        self._check_range("presence_penalty", -2.0, 2.0)
        self._check_range("frequency_penalty", -2.0, 2.0)
        self._check_range("repetition_penalty", 0.01, 10.0, "Use 1 to turn it off.")
        if self.seed is not None and not -(2**63) <= self.seed < 2**63:
            _refuse("seed", self.seed, "a 64-bit integer")
        if len(self.stop) > MAX_STOP_STRINGS:
            _refuse("stop", f"{len(self.stop)} strings", f"at most {MAX_STOP_STRINGS}")
        if any(not s for s in self.stop):
            _refuse("stop", "", "a list of non-empty strings")
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_LOGPROBS:
            _refuse("logprobs", self.logprobs, f"from 0 to {MAX_LOGPROBS}")
        for token, bias in self.logit_bias.items():
            if not -100.0 <= bias <= 100.0:
                _refuse(f"logit_bias[{token}]", bias, "from -100 to 100")

    def _check_range(self, param: str, low: float, high: float, hint: str | None = None) -> None:
        value = getattr(self, param)
        if math.isnan(value) or not low <= value <= high:
            _refuse(param, value, f"from {low:g} to {high:g}", hint)
