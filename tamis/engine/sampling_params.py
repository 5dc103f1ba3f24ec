"""How one request is sampled: vLLM's `SamplingParams` names, checked when built."""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec

from tamis.errors import InvalidRequestError

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_N = 128

INT_FIELDS = ("n", "max_tokens", "min_tokens", "top_k", "seed", "logprobs")
FLOAT_FIELDS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
BOOL_FIELDS = ("ignore_eos", "skip_special_tokens")
OPTIONAL_FIELDS = frozenset({"max_tokens", "seed", "logprobs"})


def _refuse(param: str, value: object, limit: str, hint: str | None = None) -> NoReturn:
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
        stop: strings that end the text (not included in it); one string is taken for a list of one.
        stop_token_ids: token ids that end the text.
        ignore_eos: go on after the model's end-of-turn token.
        logprobs: None is off; k also reports the k most likely tokens of each position (0 to 20).
        logit_bias: token id → added to its logit, -100 to 100.
        skip_special_tokens: leave special tokens out of the text.
        barred_token_ids: never sampled, whatever bias and penalties say. Not a field of the API: the frontend fills
            in what the vocabulary forbids.

    Raises:
        InvalidRequestError: a value of the wrong type (a bool is no integer, an integer is a number) or out of range;
            names the field, the value and the limit.
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
    barred_token_ids: list[int] = []

    def __post_init__(self) -> None:
        # Python checks no types, and a message whose types are wrong cannot be read in the engine's process.
        for name in ("stop", "stop_token_ids", "logit_bias"):
            if getattr(self, name) is None:  # as vLLM writes "none of these"
                self._set(name, {} if name == "logit_bias" else [])
        self._check_scalars()
        self._check_stop()
        self._check_token_ids()
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
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_LOGPROBS:
            _refuse("logprobs", self.logprobs, f"from 0 to {MAX_LOGPROBS}")

    def _check_scalars(self) -> None:
        for name in INT_FIELDS:
            value = getattr(self, name)
            if value is None and name in OPTIONAL_FIELDS:
                continue
            if type(value) is not int:
                _refuse(name, value, "an integer")
            if not -(2**63) <= value < 2**63:
                _refuse(name, value, "a 64-bit integer")
        for name in FLOAT_FIELDS:
            value = getattr(self, name)
            if not _is_number(value):
                _refuse(name, value, "a number")
            if type(value) not in (int, float):
                self._set(name, float(value))  # numpy's are no plain floats, and the wire takes nothing else
        for name in BOOL_FIELDS:
            if type(getattr(self, name)) is not bool:
                _refuse(name, getattr(self, name), "true or false")

    def _check_stop(self) -> None:
        stop: Any = self.stop
        if isinstance(stop, str):
            stop = [stop]
        if not isinstance(stop, (list, tuple)):
            _refuse("stop", stop, "a string or a list of strings")
        if len(stop) > MAX_STOP_STRINGS:
            _refuse("stop", f"{len(stop)} strings", f"at most {MAX_STOP_STRINGS}")
        for text in stop:
            if not isinstance(text, str) or not text:
                _refuse("stop", text, "a list of non-empty strings")
        self._set("stop", list(stop))

    def _check_token_ids(self) -> None:
        for name in ("stop_token_ids", "barred_token_ids"):
            token_ids = getattr(self, name)
            if not isinstance(token_ids, (list, tuple)):
                _refuse(name, token_ids, "a list of token ids")
            for index, token_id in enumerate(token_ids):
                if type(token_id) is not int:
                    _refuse(f"{name}[{index}]", token_id, "a token id")
            self._set(name, list(token_ids))
        if not isinstance(self.logit_bias, dict):
            _refuse("logit_bias", self.logit_bias, "a mapping of token ids to numbers")
        for token_id, bias in self.logit_bias.items():
            if type(token_id) is not int:
                raise InvalidRequestError(
                    f"logit_bias has the key {token_id!r}, but keys must be token ids (integers).", param="logit_bias"
                )
            if not _is_number(bias) or not -100.0 <= bias <= 100.0:
                _refuse(f"logit_bias[{token_id}]", bias, "a number from -100 to 100")
        self._set("logit_bias", {token_id: float(bias) for token_id, bias in self.logit_bias.items()})

    def _set(self, name: str, value: Any) -> None:
        msgspec.structs.force_setattr(self, name, value)

    def _check_range(self, param: str, low: float, high: float, hint: str | None = None) -> None:
        value = getattr(self, param)
        # False for NaN too.
        if not low <= value <= high:
            _refuse(param, value, f"from {low:g} to {high:g}", hint)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
