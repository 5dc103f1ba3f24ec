from __future__ import annotations

import pytest

from tamis.engine.messages import EngineInfo, EngineRequest, ErrorInfo, RequestDelta
from tamis.engine.plan import TokenLogprobs
from tamis.engine.sampling_params import SamplingParams
from tamis.errors import (
    ContextLengthError,
    InvalidRequestError,
    OverloadedError,
    TamisError,
)
from tamis.frontend.sequence import Sequence, build_sequences
from tamis.frontend.tokenizer import Tokenizer

INFO = EngineInfo(
    model="m", vocab_size=400, max_model_len=32, num_blocks=8, block_size=128, max_num_seqs=4, max_num_batched_tokens=64
)


def build(tokenizer: Tokenizer, prompt: list[int], **sampling) -> list[Sequence]:
    return build_sequences(prompt, SamplingParams(**sampling), request_id="r", tokenizer=tokenizer, info=INFO)


def one(tokenizer: Tokenizer, **sampling) -> Sequence:
    (sequence,) = build(tokenizer, [20, 21], **sampling)
    return sequence


def delta(ids: list[int], **kwargs) -> RequestDelta:
    return RequestDelta(request_id="r", token_ids=ids, **kwargs)


def test_a_single_completion_keeps_the_request_as_it_is(tokenizer: Tokenizer) -> None:
    (sequence,) = build_sequences(
        [20, 21],
        SamplingParams(seed=7, stop=["x"]),
        request_id="r",
        tokenizer=tokenizer,
        info=INFO,
        priority=3,
        cache_salt="s",
    )
    request = sequence.request
    assert isinstance(request, EngineRequest)
    assert (request.request_id, request.prompt_token_ids, request.sampling.seed) == ("r", [20, 21], 7)
    assert (request.priority, request.cache_salt, request.eos_token_ids) == (3, "s", tokenizer.eos_token_ids)
    assert request.sampling.stop == []


def test_n_completions_have_their_own_ids_and_seeds(tokenizer: Tokenizer) -> None:
    requests = [s.request for s in build(tokenizer, [20], n=3, seed=2**63 - 2)]
    assert [r.request_id for r in requests] == ["r-0", "r-1", "r-2"]
    assert [r.sampling.seed for r in requests] == [2**63 - 2, 2**63 - 1, -(2**63)]
    assert {r.sampling.n for r in requests} == {1}


def test_without_a_seed_the_engine_draws_one_for_each(tokenizer: Tokenizer) -> None:
    assert [s.request.sampling.seed for s in build(tokenizer, [20], n=2)] == [None, None]


def test_media_placeholders_are_barred_beside_what_the_caller_bars(tokenizer: Tokenizer) -> None:
    sampling = one(tokenizer, logit_bias={30: 1.0}, barred_token_ids=[40]).request.sampling
    assert sampling.logit_bias == {30: 1.0}
    assert sampling.barred_token_ids == [*tokenizer.forbidden_ids, 40]


def test_a_bias_on_a_media_placeholder_is_refused(tokenizer: Tokenizer) -> None:
    placeholder = tokenizer.added_tokens["]<]image[>["]
    with pytest.raises(InvalidRequestError, match=f"key {placeholder}, a media placeholder") as caught:
        one(tokenizer, logit_bias={30: 1.0, placeholder: 50.0})
    assert caught.value.param == "logit_bias"


@pytest.mark.parametrize(
    ("prompt", "sampling", "error", "words", "hint"),
    [
        pytest.param([], {}, InvalidRequestError, "0 tokens", None, id="empty"),
        pytest.param([1] * 32, {}, ContextLengthError, "has 32 tokens.*context is 32", "at most 31 tokens", id="long"),
        pytest.param(
            [1] * 30, {"max_tokens": 3}, ContextLengthError, "30 tokens and max_tokens is 3, 33", "at most 2", id="sum"
        ),
        pytest.param([1, 400], {}, InvalidRequestError, r"prompt\[1\] is token id 400.* 0 to 399", "", id="id-high"),
        pytest.param([-1], {}, InvalidRequestError, r"prompt\[0\] is token id -1", "", id="id-negative"),
        pytest.param(
            [1], {"logit_bias": {400: 1.0}}, InvalidRequestError, "logit_bias key is token id 400", "", id="bias"
        ),
        pytest.param([1], {"stop_token_ids": [-5]}, InvalidRequestError, "entry is token id -5", "", id="stop-id"),
        pytest.param([1], {"barred_token_ids": [400]}, InvalidRequestError, "entry is token id 400", "", id="barred"),
    ],
)
def test_refuses_before_submitting(
    tokenizer: Tokenizer, prompt: list[int], sampling: dict, error: type[TamisError], words: str, hint: str | None
) -> None:
    with pytest.raises(error, match=words) as caught:
        build(tokenizer, prompt, **sampling)
    assert hint is None or hint in (caught.value.hint or "")


def test_a_prompt_that_leaves_room_for_one_token_is_taken(tokenizer: Tokenizer) -> None:
    assert len(build(tokenizer, [1] * 31, max_tokens=1)) == 1
    assert len(build(tokenizer, [1] * 31, max_tokens=None)) == 1


def test_text_tokens_and_cache_hits_are_passed_on(tokenizer: Tokenizer) -> None:
    sequence = one(tokenizer)
    first = sequence.consume(delta(tokenizer.encode("ab"), num_cached_tokens=128, queued_s=0.5))
    assert (first.text, first.num_prompt_tokens, first.num_cached_tokens, first.queued_s) == ("ab", 2, 128, 0.5)
    assert first.finish_reason is None
    last = sequence.consume(delta(tokenizer.encode("c"), finish_reason="length"))
    assert (last.text, last.finish_reason, last.stop_reason, last.num_cached_tokens) == ("c", "length", None, 128)
    assert sequence.finished


def test_eos_is_counted_but_not_shown(tokenizer: Tokenizer) -> None:
    (eos,) = tokenizer.eos_token_ids
    last = one(tokenizer, skip_special_tokens=False).consume(
        delta([*tokenizer.encode("a"), eos], finish_reason="stop", stop_token_id=eos)
    )
    assert (last.text, len(last.token_ids), last.finish_reason, last.stop_reason) == ("a", 2, "stop", None)


def test_a_stop_token_is_the_stop_reason(tokenizer: Tokenizer) -> None:
    (z,) = tokenizer.encode("z")
    last = one(tokenizer).consume(delta([z], finish_reason="stop", stop_token_id=z))
    assert (last.text, last.token_ids, last.stop_reason) == ("", [z], z)


def test_a_stop_string_ends_the_text_and_drops_later_tokens(tokenizer: Tokenizer) -> None:
    sequence = one(tokenizer, stop=["ST"])
    ids = tokenizer.encode("aSTb")
    last = sequence.consume(delta(ids, logprobs=[TokenLogprobs(logprob=-1.0)] * 4))
    assert (last.text, last.finish_reason, last.stop_reason) == ("a", "stop", "ST")
    assert last.token_ids == ids[:3]
    assert last.logprobs is not None and len(last.logprobs) == 3
    assert sequence.finished


def test_a_stop_string_over_two_deltas(tokenizer: Tokenizer) -> None:
    sequence = one(tokenizer, stop=["ST"])
    assert sequence.consume(delta(tokenizer.encode("aS"))).text == "a"
    last = sequence.consume(delta(tokenizer.encode("Tb")))
    assert (last.text, last.finish_reason) == ("", "stop")


def test_what_was_held_for_a_stop_string_is_shown_at_the_end(tokenizer: Tokenizer) -> None:
    sequence = one(tokenizer, stop=["ST"])
    sequence.consume(delta(tokenizer.encode("aS")))
    assert sequence.consume(delta([], finish_reason="length")).text == "S"


def test_half_a_character_at_the_end_is_shown_as_replacement(tokenizer: Tokenizer) -> None:
    sequence = one(tokenizer)
    assert sequence.consume(delta(tokenizer.encode("é")[:1])).text == ""
    assert sequence.consume(delta([], finish_reason="length")).text == "\ufffd"


def test_an_engine_error_is_raised(tokenizer: Tokenizer) -> None:
    sequence = one(tokenizer)
    error = ErrorInfo.of(OverloadedError("The queue is full.", retry_after_s=3))
    with pytest.raises(OverloadedError, match="queue is full"):
        sequence.consume(delta([], finish_reason="error", error=error))
    assert sequence.finished
