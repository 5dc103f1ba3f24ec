from __future__ import annotations

import logging

import pytest

from tamis.config import EngineConfig
from tamis.engine.core import EngineCore
from tamis.engine.messages import EngineRequest, RequestDelta
from tamis.engine.plan import StepOutput, StepPlan
from tamis.engine.sampling_params import SamplingParams
from tamis.errors import ContextLengthError
from tests.engine.fake_runner import FakePendingStep, FakeRunner, engine_info, tokens_alone

INFO = engine_info(num_blocks=16, max_num_batched_tokens=128)


def core_and_runner() -> tuple[EngineCore, FakeRunner]:
    runner = FakeRunner(INFO)
    return EngineCore(EngineConfig(), runner, INFO), runner


def request(request_id: str, num_tokens: int = 10, max_tokens: int = 6, first: int = 1) -> EngineRequest:
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=[first] * num_tokens,
        sampling=SamplingParams(max_tokens=max_tokens, logprobs=0),
    )


def run(core: EngineCore) -> dict[str, list[RequestDelta]]:
    """Step to the end; deltas by request."""
    heard: dict[str, list[RequestDelta]] = {}
    while core.has_unfinished():
        for delta in core.step():
            heard.setdefault(delta.request_id, []).append(delta)
    return heard


def tokens(deltas: list[RequestDelta]) -> list[int]:
    return [token_id for delta in deltas for token_id in delta.token_ids]


def test_a_request_gets_its_tokens_one_a_step_with_logprobs() -> None:
    core, _ = core_and_runner()
    core.add_request(request("a"))
    deltas = run(core)["a"]
    assert tokens(deltas) == tokens_alone(request("a"), 1000)
    assert [delta.finish_reason for delta in deltas] == [None] * 5 + ["length"]
    assert [[lp.logprob for lp in delta.logprobs or []] for delta in deltas] == [[-t] for t in tokens(deltas)]


def test_the_next_step_is_submitted_before_step_returns() -> None:
    core, runner = core_and_runner()
    core.add_request(request("a", max_tokens=3))
    submitted = []
    while core.has_unfinished():
        core.step()
        submitted.append(len(runner.plans))
    assert submitted == [2, 3, 3]


def test_the_next_step_is_planned_while_the_runner_works() -> None:
    order: list[str] = []

    class Watched(FakeRunner):
        def submit(self, plan: StepPlan) -> FakePendingStep:
            order.append(f"submit {plan.step_id}")
            step = super().submit(plan)

            class Pending(FakePendingStep):
                def result(self) -> StepOutput:
                    order.append(f"wait {plan.step_id}")
                    return step.result()

            return Pending(None)

    core = EngineCore(EngineConfig(), Watched(INFO), INFO)
    schedule = core._scheduler.schedule

    def watched_schedule() -> StepPlan | None:
        plan = schedule()
        order.append(f"plan {None if plan is None else plan.step_id}")
        return plan

    core._scheduler.schedule = watched_schedule  # type: ignore[method-assign]
    core.add_request(request("a", max_tokens=2))
    run(core)
    assert order == ["plan 0", "submit 0", "plan 1", "wait 0", "submit 1", "plan None", "wait 1"]


def test_an_aborted_request_is_in_no_later_step() -> None:
    core, runner = core_and_runner()
    core.add_request(request("a", max_tokens=100))
    core.add_request(request("b", max_tokens=5, first=2))
    core.step()
    in_flight = len(runner.plans)
    [delta] = core.abort(["a"])
    assert delta.finish_reason == "abort"
    assert tokens(run(core)["b"])
    assert all(entry.request_id == "b" for plan in runner.plans[in_flight:] for entry in plan.scheduled)
    assert core.count_leaked_blocks() == 0


def test_aborting_the_only_request_drains_the_step_under_way() -> None:
    core, _ = core_and_runner()
    core.add_request(request("a", max_tokens=100))
    core.step()
    core.abort(["a"])
    assert core.has_unfinished()
    assert core.step() == []
    assert not core.has_unfinished()
    assert core.stats().num_used_blocks == 0


@pytest.mark.parametrize("how", ["fail_submit", "fail_result"])
def test_a_failing_step_ends_its_requests_and_no_others(how: str, caplog: pytest.LogCaptureFixture) -> None:
    core, runner = core_and_runner()
    core.add_request(request("a", 120))
    core.add_request(request("b", 120, first=2))
    setattr(runner, how, True)
    heard = run(core)
    # The first step had room for all of `a` and a piece of `b`; a later request was not in it.
    [a], [b] = heard["a"], heard["b"]
    for delta in (a, b):
        assert delta.finish_reason == "error"
        assert delta.error is not None and delta.error.status == 500
        assert delta.error.message == "The engine failed while it computed this request (Failure)."
    assert runner.num_resets == 1
    [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.exc_info is not None

    core.add_request(request("c"))
    assert tokens(run(core)["c"]) == tokens_alone(request("c"), 1000)
    assert core.count_leaked_blocks() == 0


def test_requests_outside_the_failing_step_go_on() -> None:
    core, runner = core_and_runner()
    core.add_request(request("a", 300))
    core.add_request(request("b", first=2))
    runner.fail_result = True
    heard = run(core)
    assert [delta.finish_reason for delta in heard["a"]] == ["error"]
    assert tokens(heard["b"]) == tokens_alone(request("b", first=2), 1000)
    assert core.stats().num_used_blocks == 0


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(lambda out: StepOutput(step_id=out.step_id, sampled={}), id="a token is missing"),
        pytest.param(lambda out: StepOutput(step_id=out.step_id + 1, sampled=out.sampled), id="another step's answer"),
        pytest.param(
            lambda out: StepOutput(step_id=out.step_id, sampled={**out.sampled, "x": out.sampled["a"]}),
            id="a token for nobody",
        ),
    ],
)
def test_a_wrong_answer_is_a_failing_step(broken: object) -> None:
    assert callable(broken)

    class Liar(FakeRunner):
        def submit(self, plan: StepPlan) -> FakePendingStep:
            return FakePendingStep(broken(super().submit(plan).result()))

    core = EngineCore(EngineConfig(), Liar(INFO), INFO)
    core.add_request(request("a"))
    [delta] = run(core)["a"]
    assert delta.finish_reason == "error"


def test_a_refused_request_changes_nothing() -> None:
    core, _ = core_and_runner()
    with pytest.raises(ContextLengthError):
        core.add_request(request("a", 5000))
    assert not core.has_unfinished()
    core.add_request(request("a"))
    assert tokens(run(core)["a"]) == tokens_alone(request("a"), 1000)


def test_stats_count_what_was_done() -> None:
    core, _ = core_and_runner()
    core.add_request(request("a", 200, max_tokens=4))
    run(core)
    stats = core.stats()
    assert (stats.prompt_tokens, stats.generation_tokens, stats.steps) == (200, 4, 5)
    assert (stats.num_free_blocks, stats.num_cached_blocks, stats.num_used_blocks) == (16, 1, 0)
    assert stats.step_s > 0


def test_shutdown_waits_for_the_step_and_frees_the_runner() -> None:
    core, runner = core_and_runner()
    core.add_request(request("a", max_tokens=100))
    core.step()
    assert [delta.finish_reason for delta in core.abort_all()] == ["abort"]
    core.shutdown()
    assert runner.is_shut_down
