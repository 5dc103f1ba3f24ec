"""A runner without a model that checks every plan against the contract and samples a hash of all tokens so far.

The "row" of a token is a fingerprint of the salt and all tokens up to it, as a key or value of a real model is. So a
wrong block, a stale share, a lost token or a doubled one shows up as a wrong fingerprint in some read slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from tamis.config import BLOCK_TOKENS
from tamis.engine.messages import EngineInfo, EngineRequest
from tamis.engine.plan import NewRequest, SampledToken, ScheduledRequest, StepOutput, StepPlan, TokenLogprobs

VOCAB_SIZE = 97
EOS = 96
_MODULUS = (1 << 61) - 1


def start_of(salt: str | None) -> int:
    """Fingerprint before the first token."""
    return 7 if salt is None else 1000 + sum(salt.encode())


def extend(fingerprint: int, token_id: int) -> int:
    """Fingerprint after one more token."""
    return (fingerprint * 1_000_003 + token_id + 1) % _MODULUS


def sample(fingerprint: int, forbidden: Sequence[int] = ()) -> int:
    """The next token after a fingerprint."""
    token_id = (fingerprint >> 7) % VOCAB_SIZE
    while token_id in forbidden:
        token_id = (token_id + 1) % VOCAB_SIZE
    return token_id


def tokens_alone(request: EngineRequest, context: int) -> list[int]:
    """The output of a request by definition, with no engine at all."""
    sampling = request.sampling
    stops = set(sampling.stop_token_ids) | set([] if sampling.ignore_eos else request.eos_token_ids)
    room = context - len(request.prompt_token_ids)
    fingerprint = start_of(request.cache_salt)
    for token_id in request.prompt_token_ids:
        fingerprint = extend(fingerprint, token_id)
    output: list[int] = []
    while len(output) < (room if sampling.max_tokens is None else sampling.max_tokens):
        token_id = sample(fingerprint, stops if len(output) < sampling.min_tokens else ())
        output.append(token_id)
        if token_id in stops:
            break
        fingerprint = extend(fingerprint, token_id)
    return output


def engine_info(
    num_blocks: int = 64, max_model_len: int = 4096, max_num_seqs: int = 8, max_num_batched_tokens: int = 256
) -> EngineInfo:
    """Limits for an engine over a `FakeRunner`."""
    return EngineInfo(
        model="fake",
        vocab_size=VOCAB_SIZE,
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        block_size=BLOCK_TOKENS,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )


@dataclass
class Held:
    """What the runner keeps of a request."""

    token_ids: list[int]
    block_table: list[int]
    num_computed: int
    num_prefill: int
    num_prompt: int
    stop_token_ids: list[int]
    min_tokens: int
    fingerprints: list[int] = field(default_factory=list)


class Failure(RuntimeError):
    """A failure that a test asked for."""


class ContractBroken(BaseException):
    """A plan that no runner could execute. Not an `Exception`: the engine would take it for a failing step."""


class FakePendingStep:
    """A step that is over, or has failed."""

    def __init__(self, output: StepOutput | None):
        self._output = output

    def result(self) -> StepOutput:
        """The output, or the failure."""
        if self._output is None:
            raise Failure("the step broke")
        return self._output

    def done(self) -> bool:
        """Always."""
        return True


class FakeRunner:
    """Checks and executes plans at `submit`.

    Attributes:
        salts: request id → cache salt; set by the test, for plans do not carry it.
        fail_submit, fail_result: the next step fails at once, or when its result is asked for.
        plans: what was submitted, oldest first.
    """

    def __init__(self, info: EngineInfo):
        self.num_blocks = info.num_blocks + 1
        self.info = info
        self.salts: dict[str, str | None] = {}
        self.fail_submit = False
        self.fail_result = False
        self.plans: list[StepPlan] = []
        self.held: dict[str, Held] = {}
        self.rows = self._empty_rows()
        self.next_step_id = 0
        self.num_resets = 0
        self.is_shut_down = False

    def submit(self, plan: StepPlan) -> FakePendingStep:
        """Verify and run a step."""
        # Through bytes and back: nothing that the engine does to its own objects later may reach the runner.
        plan = msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=StepPlan)
        if plan.step_id != self.next_step_id:
            raise ContractBroken(f"step {plan.step_id} follows step {self.next_step_id - 1}")
        self.next_step_id += 1
        self.plans.append(plan)
        if self.fail_submit:
            self.fail_submit = False
            raise Failure("the step could not start")
        try:
            self._update_requests(plan)
            self._check_limits(plan)
            self._write(plan)
            self._read(plan)
        except AssertionError as error:
            raise ContractBroken(f"step {plan.step_id}: {error}") from error
        output = self._sample(plan)
        if self.fail_result:
            self.fail_result = False
            return FakePendingStep(None)
        return FakePendingStep(output)

    def reset(self) -> None:
        """Lose every request and the pool's contents."""
        self.held.clear()
        self.rows = self._empty_rows()
        self.num_resets += 1

    def shutdown(self) -> None:
        """Note it."""
        self.is_shut_down = True

    def _empty_rows(self) -> list[list[int]]:
        return [[-1] * BLOCK_TOKENS for _ in range(self.num_blocks)]

    def _update_requests(self, plan: StepPlan) -> None:
        for request_id in plan.finished:
            assert request_id in self.held, f"{request_id} is finished, but was never introduced"
            del self.held[request_id]
        scheduled = [entry.request_id for entry in plan.scheduled]
        assert len(set(scheduled)) == len(scheduled), "a request is scheduled once a step"
        for new in plan.new:
            assert new.request_id not in self.held, f"{new.request_id} is introduced twice"
            assert new.request_id in scheduled, f"{new.request_id} is introduced, but not scheduled"
            self.held[new.request_id] = self._hold(new)
        for entry in plan.scheduled:
            assert entry.request_id in self.held, f"{entry.request_id} is scheduled, but was never introduced"
            self.held[entry.request_id].block_table += entry.new_block_ids

    def _hold(self, new: NewRequest) -> Held:
        assert new.sampling.seed is not None, "the runner gets a seed"
        assert 0 < new.num_prompt_tokens <= len(new.token_ids)
        assert new.num_computed_tokens % BLOCK_TOKENS == 0, "only whole blocks are shared"
        assert new.num_computed_tokens < len(new.token_ids), "the last token is always computed"
        held = Held(
            token_ids=list(new.token_ids),
            block_table=list(new.block_ids),
            num_computed=new.num_computed_tokens,
            num_prefill=len(new.token_ids),
            num_prompt=new.num_prompt_tokens,
            stop_token_ids=new.stop_token_ids,
            min_tokens=new.sampling.min_tokens,
        )
        fingerprint = start_of(self.salts.get(new.request_id))
        for token_id in held.token_ids:
            fingerprint = extend(fingerprint, token_id)
            held.fingerprints.append(fingerprint)
        return held

    def _check_limits(self, plan: StepPlan) -> None:
        assert plan.scheduled, "an empty step is not worth running"
        assert plan.num_tokens <= self.info.max_num_batched_tokens, "the token budget holds"
        assert len(self.held) <= self.info.max_num_seqs, "max_num_seqs holds"
        prefill_seen = False
        for entry in plan.scheduled:
            held = self.held[entry.request_id]
            end = held.num_computed + entry.num_tokens
            assert entry.num_tokens > 0
            assert end <= len(held.token_ids), "only known tokens are computed"
            assert entry.samples == (end == len(held.token_ids)), "the last token samples, others do not"
            prefills = held.num_computed < held.num_prefill
            assert prefills or not prefill_seen, "decode first"
            prefill_seen |= prefills
            table = held.block_table
            assert len(table) == -(-end // BLOCK_TOKENS), "blocks are taken as tokens need them"
            assert len(set(table)) == len(table) and all(1 <= block < self.num_blocks for block in table)

    def _write(self, plan: StepPlan) -> None:
        written: set[tuple[int, int]] = set()
        for entry in plan.scheduled:
            held = self.held[entry.request_id]
            for position in range(held.num_computed, held.num_computed + entry.num_tokens):
                block, offset = held.block_table[position // BLOCK_TOKENS], position % BLOCK_TOKENS
                assert (block, offset) not in written, f"slot {offset} of block {block} is written twice"
                written.add((block, offset))
                self.rows[block][offset] = held.fingerprints[position]
            held.num_computed += entry.num_tokens

    def _read(self, plan: StepPlan) -> None:
        # Of all requests, not only the scheduled ones: nobody may overwrite what another still holds.
        for request_id, held in self.held.items():
            for index in range(-(-held.num_computed // BLOCK_TOKENS)):
                expected = held.fingerprints[index * BLOCK_TOKENS : held.num_computed][:BLOCK_TOKENS]
                block = held.block_table[index]
                assert self.rows[block][: len(expected)] == expected, (
                    f"{request_id} reads foreign or lost content in block {block}, the {index}th of its table"
                )

    def _sample(self, plan: StepPlan) -> StepOutput:
        sampled = {}
        for entry in plan.scheduled:
            if entry.samples:
                sampled[entry.request_id] = self._sample_one(entry)
        return StepOutput(step_id=plan.step_id, sampled=sampled)

    def _sample_one(self, entry: ScheduledRequest) -> SampledToken:
        held = self.held[entry.request_id]
        fingerprint = held.fingerprints[-1]
        early = len(held.token_ids) - held.num_prompt < held.min_tokens
        token_id = sample(fingerprint, held.stop_token_ids if early else ())
        held.token_ids.append(token_id)
        held.fingerprints.append(extend(fingerprint, token_id))
        return SampledToken(token_id=token_id, logprobs=TokenLogprobs(logprob=-float(token_id)))
