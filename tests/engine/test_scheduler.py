"""The scheduler by hand: a pipeline is a list of plans that have been made and not committed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tamis.config import BLOCK_TOKENS, EngineConfig
from tamis.engine.messages import EngineRequest, ErrorInfo, RequestDelta
from tamis.engine.plan import SampledToken, StepOutput, StepPlan
from tamis.engine.sampling_params import SamplingParams
from tamis.engine.scheduler import Scheduler
from tamis.errors import InvalidRequestError, OverloadedError
from tests.engine.fake_runner import EOS, engine_info

ERROR = ErrorInfo(message="It broke.", code="internal_error", status=500)


class Clock:
    """Seconds that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def scheduler(
    policy: str = "fcfs", max_queued_requests: int = 1024, clock: Clock | None = None, **info: int
) -> Scheduler:
    config = EngineConfig(scheduling_policy=policy, max_queued_requests=max_queued_requests)  # type: ignore[arg-type]
    return Scheduler(config, engine_info(**info), clock or Clock())


def request(
    request_id: str,
    num_tokens: int = 10,
    *,
    first: int = 1,
    max_tokens: int | None = 50,
    min_tokens: int = 0,
    stop: Sequence[int] = (),
    ignore_eos: bool = False,
    priority: int = 0,
) -> EngineRequest:
    """A prompt whose tokens are all different from those of a prompt with another `first`."""
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=[first] * num_tokens,
        sampling=SamplingParams(
            max_tokens=max_tokens, min_tokens=min_tokens, stop_token_ids=list(stop), ignore_eos=ignore_eos
        ),
        eos_token_ids=[EOS],
        priority=priority,
    )


def plan_of(planned: StepPlan | None) -> StepPlan:
    assert planned is not None
    return planned


def commit(scheduler: Scheduler, plan: StepPlan, token_id: int = 50, **tokens: int) -> list[RequestDelta]:
    """Commit with one token for all, or with a token by request id."""
    sampled = {
        entry.request_id: SampledToken(token_id=tokens.get(entry.request_id, token_id))
        for entry in plan.scheduled
        if entry.samples
    }
    return scheduler.commit(plan, StepOutput(step_id=plan.step_id, sampled=sampled))


def step(scheduler: Scheduler, token_id: int = 50, **tokens: int) -> list[RequestDelta]:
    return commit(scheduler, plan_of(scheduler.schedule()), token_id, **tokens)


def shape(plan: StepPlan | None) -> list[tuple[str, int]]:
    """(request, tokens) of each entry."""
    return [(entry.request_id, entry.num_tokens) for entry in plan_of(plan).scheduled]


class TestPlans:
    def test_nothing_to_do_is_no_plan(self) -> None:
        assert scheduler().schedule() is None

    def test_a_new_request_comes_whole(self) -> None:
        s = scheduler()
        s.add(request("a", 130, stop=[5]))
        [new] = plan_of(s.schedule()).new
        assert (new.request_id, new.token_ids, new.num_prompt_tokens) == ("a", [1] * 130, 130)
        assert (len(new.block_ids), new.num_computed_tokens) == (2, 0)
        assert new.sampling.seed is not None
        assert new.stop_token_ids == [5, EOS]

    def test_the_runner_s_tokens_are_its_own(self) -> None:
        s = scheduler()
        s.add(request("a", 10))
        plan = plan_of(s.schedule())
        commit(s, plan)
        assert plan.new[0].token_ids == [1] * 10

    def test_a_long_prompt_is_prefilled_in_chunks_and_only_the_last_samples(self) -> None:
        s = scheduler(max_num_batched_tokens=100)
        s.add(request("a", 250))
        plans = [plan_of(s.schedule()) for _ in range(3)]
        assert [shape(plan) for plan in plans] == [[("a", 100)], [("a", 100)], [("a", 50)]]
        assert [plan.scheduled[0].samples for plan in plans] == [False, False, True]

    def test_blocks_are_taken_as_tokens_need_them(self) -> None:
        s = scheduler(max_num_batched_tokens=100)
        s.add(request("a", 250))
        used = []
        for _ in range(3):
            s.schedule()
            used.append(s.stats().num_used_blocks)
        assert used == [1, 2, 2]

    def test_decodes_come_first_and_prefill_gets_the_rest(self) -> None:
        s = scheduler(max_num_batched_tokens=100)
        s.add(request("a", 10))
        step(s)
        s.add(request("b", 500))
        assert shape(s.schedule()) == [("a", 1), ("b", 99)]

    def test_several_prompts_share_a_step(self) -> None:
        s = scheduler(max_num_batched_tokens=100)
        for request_id in "abc":
            s.add(request(request_id, 40, first=ord(request_id) % 50))
        assert shape(s.schedule()) == [("a", 40), ("b", 40), ("c", 20)]

    def test_max_num_seqs_holds_back_the_rest(self) -> None:
        s = scheduler(max_num_seqs=2)
        for request_id in "abc":
            s.add(request(request_id))
        assert [entry.request_id for entry in plan_of(s.schedule()).scheduled] == ["a", "b"]
        assert (s.stats().num_running, s.stats().num_waiting) == (2, 1)

    def test_a_prompt_is_admitted_only_when_all_of_it_has_room(self) -> None:
        s = scheduler(num_blocks=6, max_num_batched_tokens=128)
        s.add(request("a", 4 * BLOCK_TOKENS, max_tokens=1))
        s.add(request("b", 3 * BLOCK_TOKENS, first=2, max_tokens=1))
        for _ in range(4):
            assert shape(s.schedule()) == [("a", BLOCK_TOKENS)]


class TestPlanningAhead:
    def test_a_decode_is_planned_before_its_token_is_known(self) -> None:
        s = scheduler()
        s.add(request("a"))
        plans = [plan_of(s.schedule()) for _ in range(3)]
        assert [shape(plan) for plan in plans] == [[("a", 10)], [("a", 1)], [("a", 1)]]

    def test_nothing_is_planned_beyond_max_tokens(self) -> None:
        s = scheduler()
        s.add(request("a", max_tokens=2))
        plans = [plan_of(s.schedule()), plan_of(s.schedule())]
        assert s.schedule() is None
        assert [commit(s, plan)[0].finish_reason for plan in plans] == [None, "length"]

    def test_a_decode_of_a_request_that_ended_is_pruned(self) -> None:
        s = scheduler()
        s.add(request("a"))
        s.add(request("b"))
        first, ahead = plan_of(s.schedule()), plan_of(s.schedule())
        commit(s, first, a=EOS)
        assert shape(s.prune(ahead)) == [("b", 1)]
        assert plan_of(s.schedule()).finished == ["a"]

    def test_a_plan_that_is_pruned_to_nothing_leaves_no_trace(self) -> None:
        s = scheduler()
        s.add(request("a"))
        s.add(request("b", max_tokens=1))
        commit(s, plan_of(s.schedule()))
        first = plan_of(s.schedule())
        assert first.finished == ["b"]
        s.abort(["a"])
        assert s.prune(first) is None
        s.add(request("c"))
        again = plan_of(s.schedule())
        assert (again.step_id, again.finished) == (first.step_id, ["b", "a"])

    def test_a_planned_prefill_is_never_pruned(self) -> None:
        s = scheduler()
        s.add(request("a", 200))
        plan = plan_of(s.schedule())
        s.abort(["a"])
        assert shape(s.prune(plan)) == [("a", 200)]
        assert commit(s, plan) == []

    def test_a_block_completed_by_the_last_token_is_not_offered_for_its_slot_was_never_written(self) -> None:
        s = scheduler()
        s.add(request("a", BLOCK_TOKENS - 1))
        first, ahead = plan_of(s.schedule()), plan_of(s.schedule())
        commit(s, first, EOS)
        assert s.prune(ahead) is None
        s.add(EngineRequest(request_id="b", prompt_token_ids=[1] * 127 + [EOS, 1], sampling=SamplingParams()))
        assert plan_of(s.schedule()).new[0].num_computed_tokens == 0

    def test_a_block_completed_by_sampled_tokens_is_offered_once_it_is_written(self) -> None:
        s = scheduler()
        s.add(request("a", BLOCK_TOKENS - 1))
        step(s, 50)
        step(s, 51)
        s.add(EngineRequest(request_id="b", prompt_token_ids=[1] * 127 + [50, 1], sampling=SamplingParams()))
        new = [new for new in plan_of(s.schedule()).new if new.request_id == "b"]
        assert new[0].num_computed_tokens == BLOCK_TOKENS


class TestPrefixSharing:
    @pytest.mark.parametrize(
        ("num_tokens", "hit"), [(127, 0), (128, 0), (129, 128), (256, 128), (257, 256), (400, 256)]
    )
    def test_a_hit_is_whole_blocks_and_never_the_last_token(self, num_tokens: int, hit: int) -> None:
        s = scheduler()
        s.add(request("a", 300))
        step(s)
        step(s)
        s.add(request("b", num_tokens))
        new = [new for new in plan_of(s.schedule()).new if new.request_id == "b"]
        assert new[0].num_computed_tokens == hit

    def test_requests_of_one_step_share(self) -> None:
        s = scheduler(max_num_batched_tokens=1000)
        s.add(request("a", 300))
        s.add(request("b", 300))
        plan = plan_of(s.schedule())
        assert shape(plan) == [("a", 300), ("b", 300 - 256)]
        assert plan.new[0].block_ids[:2] == plan.new[1].block_ids[:2]
        assert [delta.num_cached_tokens for delta in commit(s, plan)] == [0, 256]

    def test_hits_are_counted_once_a_request(self) -> None:
        s = scheduler(max_num_batched_tokens=1000)
        s.add(request("a", 300))
        s.add(request("b", 300))
        s.schedule()
        stats = s.stats()
        assert (stats.prefix_queries_tokens, stats.prefix_hits_tokens, stats.prompt_tokens) == (600, 256, 600)

    def test_another_salt_shares_nothing(self) -> None:
        s = scheduler(max_num_batched_tokens=1000)
        for request_id, salt in (("a", None), ("b", ""), ("c", "x")):
            salted = request(request_id, 300)
            salted.cache_salt = salt
            s.add(salted)
        assert [new.num_computed_tokens for new in plan_of(s.schedule()).new] == [0, 0, 0]

    def test_a_conversation_goes_on_from_cached_blocks(self) -> None:
        s = scheduler(max_num_batched_tokens=300)
        s.add(request("a", 300, max_tokens=1))
        step(s)
        assert s.stats().num_cached_blocks == 2
        s.add(request("b", 500))
        assert plan_of(s.schedule()).new[0].num_computed_tokens == 256


class TestEnds:
    @pytest.mark.parametrize(
        ("kwargs", "tokens", "reasons"),
        [
            pytest.param({}, [50, EOS], [None, "stop"], id="eos"),
            pytest.param({"ignore_eos": True, "max_tokens": 2}, [EOS, EOS], [None, "length"], id="eos ignored"),
            pytest.param({"stop": [7]}, [50, 7], [None, "stop"], id="stop token"),
            pytest.param({"min_tokens": 3}, [EOS, EOS, EOS], [None, None, "stop"], id="eos before min_tokens"),
            pytest.param({"stop": [7], "min_tokens": 2}, [7, 7], [None, "stop"], id="stop token before min_tokens"),
            pytest.param({"max_tokens": 2}, [50, EOS], [None, "stop"], id="eos at max_tokens"),
            pytest.param({"max_tokens": 1}, [50], ["length"], id="length"),
        ],
    )
    def test_finish_reasons(self, kwargs: dict[str, object], tokens: list[int], reasons: list[str | None]) -> None:
        s = scheduler()
        s.add(request("a", **kwargs))  # type: ignore[arg-type]
        deltas = [delta for token in tokens for delta in step(s, token)]
        assert [delta.token_ids for delta in deltas] == [[token] for token in tokens]
        assert [delta.finish_reason for delta in deltas] == reasons
        assert deltas[-1].stop_token_id == (tokens[-1] if reasons[-1] == "stop" else None)
        assert not s.has_unfinished()

    def test_a_finished_request_gives_back_its_blocks_and_leaves_the_runner(self) -> None:
        s = scheduler()
        s.add(request("a", max_tokens=1))
        step(s)
        assert s.stats().num_used_blocks == 0
        s.add(request("b"))
        assert plan_of(s.schedule()).finished == ["a"]

    def test_an_abort_frees_at_once_and_drops_the_token_under_way(self) -> None:
        s = scheduler()
        s.add(request("a"))
        plan = plan_of(s.schedule())
        [delta] = s.abort(["a", "unknown"])
        assert (delta.request_id, delta.finish_reason) == ("a", "abort")
        assert s.stats().num_used_blocks == 0
        assert commit(s, plan) == []

    def test_a_token_of_an_aborted_request_is_not_given_to_a_new_one_of_the_same_id(self) -> None:
        s = scheduler()
        s.add(request("a"))
        old = plan_of(s.schedule())
        s.abort(["a"])
        s.add(request("a", first=2))
        new = plan_of(s.schedule())
        assert (new.finished, new.new[0].token_ids[0]) == (["a"], 2)
        assert commit(s, old, 33) == []
        assert commit(s, new, 44)[0].token_ids == [44]

    def test_the_wait_is_reported_with_the_first_token_only(self) -> None:
        clock = Clock()
        s = scheduler(clock=clock)
        s.add(request("a"))
        clock.now_s = 1.5
        assert [step(s)[0].queued_s for _ in range(2)] == [1.5, 0.0]


class TestPreemption:
    def two_at_the_brink(self) -> Scheduler:
        """`a` and `b` fill a pool of 4 blocks and both want a fifth."""
        s = scheduler(num_blocks=4, max_num_batched_tokens=1000)
        s.add(request("a", 2 * BLOCK_TOKENS - 1, first=1))
        s.add(request("b", 2 * BLOCK_TOKENS - 1, first=2))
        step(s, 50)
        return s

    def test_the_latest_request_gives_way(self) -> None:
        s = self.two_at_the_brink()
        step(s, 51)
        plan = plan_of(s.schedule())
        assert (shape(plan), plan.finished) == ([("a", 1)], ["b"])
        assert s.stats().preemptions == 1
        assert (s.stats().num_running, s.stats().num_waiting) == (1, 1)

    def test_it_comes_back_whole_with_its_output_and_before_later_ones(self) -> None:
        s = self.two_at_the_brink()
        s.add(request("c", first=3))
        step(s, 51)
        step(s, EOS)
        plan = plan_of(s.schedule())
        assert [new.request_id for new in plan.new] == ["b", "c"]
        assert plan.new[0].token_ids == [2] * (2 * BLOCK_TOKENS - 1) + [50, 51]
        assert plan.new[0].num_prompt_tokens == 2 * BLOCK_TOKENS - 1
        assert plan.finished == ["a"]

    def test_a_token_under_way_is_kept_and_waited_for(self) -> None:
        s = self.two_at_the_brink()
        under_way = plan_of(s.schedule())
        ahead = plan_of(s.schedule())
        assert ahead.finished == ["b"]
        s.abort(["a"])
        # `b` is first in the queue and has room, but is owed a token.
        assert s.schedule() is None
        assert [(d.request_id, d.token_ids) for d in commit(s, under_way, b=61)] == [("b", [61])]
        assert plan_of(s.schedule()).new[0].token_ids[-2:] == [50, 61]

    def test_a_token_under_way_can_end_a_preempted_request(self) -> None:
        s = self.two_at_the_brink()
        under_way = plan_of(s.schedule())
        s.schedule()
        deltas = commit(s, under_way, b=EOS)
        assert [(d.request_id, d.finish_reason) for d in deltas] == [("a", None), ("b", "stop")]
        assert s.stats().num_waiting == 0

    def test_a_decode_that_was_planned_in_the_same_step_is_withdrawn(self) -> None:
        s = scheduler("priority", num_blocks=4, max_num_batched_tokens=BLOCK_TOKENS + 1)
        s.add(request("low", BLOCK_TOKENS - 1, priority=1))
        step(s, 50)
        s.add(request("high", 3 * BLOCK_TOKENS, first=2, priority=0))
        step(s, 51)
        step(s, 52)
        # `low` has grown into the last block meanwhile, which the third chunk of `high` needs.
        plan = plan_of(s.schedule())
        assert (shape(plan), plan.finished) == ([("high", BLOCK_TOKENS)], ["low"])
        commit(s, plan)
        s.abort(["high"])
        [new] = plan_of(s.schedule()).new
        assert (new.request_id, new.token_ids[-3:]) == ("low", [50, 51, 52])

    def test_better_priority_takes_the_place_of_worse(self) -> None:
        s = scheduler("priority", max_num_seqs=2)
        s.add(request("low", priority=5))
        s.add(request("mid", priority=1))
        step(s)
        s.add(request("high", priority=0))
        plan = plan_of(s.schedule())
        assert (shape(plan), plan.finished) == ([("mid", 1), ("high", 10)], ["low"])

    def test_equal_priority_takes_nobody_s_place(self) -> None:
        s = scheduler("priority", max_num_seqs=1)
        s.add(request("a", priority=1))
        step(s)
        s.add(request("b", priority=1))
        assert shape(s.schedule()) == [("a", 1)]

    def test_nobody_is_preempted_where_it_would_not_help(self) -> None:
        s = scheduler("priority", num_blocks=4, max_num_batched_tokens=1000)
        s.add(request("a", 2 * BLOCK_TOKENS, priority=0, max_tokens=1 + BLOCK_TOKENS))
        s.add(request("b", 10, first=2, priority=9))
        step(s)
        s.add(request("c", 4 * BLOCK_TOKENS - 60, first=3, priority=1))
        assert shape(s.schedule()) == [("a", 1), ("b", 1)]

    def test_a_better_prompt_overtakes_a_worse_prefill(self) -> None:
        s = scheduler("priority", max_num_batched_tokens=100)
        s.add(request("low", 1000, priority=5))
        s.schedule()
        s.add(request("high", 60, first=2, priority=0))
        assert shape(s.schedule()) == [("high", 60), ("low", 40)]


class TestFailure:
    def test_the_step_s_requests_end_and_the_others_go_on_afresh(self) -> None:
        s = scheduler(max_num_batched_tokens=200)
        s.add(request("a", 200))
        broken = plan_of(s.schedule())
        s.add(request("b", 150, first=2))
        ahead = plan_of(s.schedule())
        assert [e.request_id for e in ahead.scheduled] == ["a", "b"]
        deltas = s.fail(broken, ERROR)
        assert [(d.request_id, d.finish_reason, d.error) for d in deltas] == [("a", "error", ERROR)]
        again = plan_of(s.schedule())
        assert (again.step_id, shape(again), again.finished) == (broken.step_id + 1, [("b", 150)], [])
        assert again.new[0].num_computed_tokens == 0

    def test_no_prefix_survives(self) -> None:
        s = scheduler(max_num_batched_tokens=1000)
        s.add(request("a", 300))
        s.fail(plan_of(s.schedule()), ERROR)
        assert s.stats().num_cached_blocks == 0
        s.add(request("b", 300))
        assert plan_of(s.schedule()).new[0].num_computed_tokens == 0

    def test_a_token_that_will_never_come_is_not_waited_for(self) -> None:
        s = scheduler(max_num_batched_tokens=200)
        s.add(request("a", 200))
        broken = plan_of(s.schedule())
        s.add(request("b", 10, first=2))
        s.schedule()
        s.fail(broken, ERROR)
        assert shape(s.schedule()) == [("b", 10)]


class TestRefusals:
    def test_an_id_that_is_running_is_refused(self) -> None:
        s = scheduler()
        s.add(request("a"))
        with pytest.raises(InvalidRequestError, match="'a' is already running"):
            s.add(request("a"))

    def test_a_full_queue_refuses_and_says_when_to_come_back(self) -> None:
        s = scheduler(max_queued_requests=3, max_num_seqs=1)
        for number in range(3):
            s.add(request(f"r{number}"))
        with pytest.raises(OverloadedError, match="3 requests are waiting, and the limit is 3") as caught:
            s.add(request("late"))
        assert caught.value.retry_after_s == 3

    def test_the_advice_to_come_back_follows_how_long_requests_take(self) -> None:
        clock = Clock()
        s = scheduler(max_queued_requests=3, max_num_seqs=1, clock=clock)
        s.add(request("slow", max_tokens=1))
        plan = plan_of(s.schedule())
        clock.now_s = 101.0
        commit(s, plan)
        for number in range(3):
            s.add(request(f"r{number}"))
        with pytest.raises(OverloadedError) as caught:
            s.add(request("late"))
        assert caught.value.retry_after_s == 33
