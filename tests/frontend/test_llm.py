from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tamis import LLM, SamplingParams
from tamis.config import EngineConfig
from tamis.engine.messages import EngineInfo
from tamis.errors import CheckpointError, ConfigError, ContextLengthError, InvalidRequestError, TamisError
from tamis.frontend.tokenizer import Tokenizer
from tests.frontend.scripted_runner import ScriptedRunner

REPLY = "hello world"


def info(config: EngineConfig, vocab_size: int = 400) -> EngineInfo:
    return EngineInfo(
        model=config.model,
        vocab_size=vocab_size,
        max_model_len=2048,
        num_blocks=64,
        block_size=128,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
    )


@pytest.fixture
def runner(tokenizer: Tokenizer) -> ScriptedRunner:
    return ScriptedRunner([*tokenizer.encode(REPLY), *tokenizer.eos_token_ids])


@pytest.fixture
def make(model_folder: Path, runner: ScriptedRunner) -> Iterator[Callable[..., LLM]]:
    made: list[LLM] = []

    def build(**engine_args) -> LLM:
        llm = LLM(str(model_folder), load=lambda config, progress: (runner, info(config)), **engine_args)
        made.append(llm)
        return llm

    yield build
    for llm in made:
        llm.shutdown()


def greedy(**kwargs) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=kwargs.pop("max_tokens", 64), **kwargs)


def test_one_prompt_gives_one_finished_output(make: Callable[..., LLM], tokenizer: Tokenizer) -> None:
    (output,) = make().generate("hi", greedy())
    (completion,) = output.outputs
    assert (output.prompt, output.prompt_token_ids, output.finished) == ("hi", tokenizer.encode("hi"), True)
    assert (completion.text, completion.finish_reason, completion.stop_reason) == (REPLY, "stop", None)
    assert completion.token_ids == [*tokenizer.encode(REPLY), *tokenizer.eos_token_ids]
    assert (completion.logprobs, completion.cumulative_logprob) == (None, None)


@pytest.mark.parametrize(
    ("prompts", "ids"),
    [
        pytest.param("]~b]", [[1]], id="text-with-a-marker"),
        pytest.param(["]~b]", "[e~["], [[1], [2]], id="texts"),
        pytest.param([5, 6], [[5, 6]], id="one-list-of-ids"),
        pytest.param([[5], [6, 7]], [[5], [6, 7]], id="lists-of-ids"),
        pytest.param({"prompt_token_ids": [5]}, [[5]], id="tokens-prompt"),
        pytest.param([{"prompt": "]~b]"}, [5]], [[1], [5]], id="mixed"),
        pytest.param([], [], id="none"),
    ],
)
def test_prompts_may_be(make: Callable[..., LLM], prompts: object, ids: list[list[int]]) -> None:
    assert [output.prompt_token_ids for output in make().generate(prompts, greedy(max_tokens=2))] == ids


def test_outputs_come_in_the_order_of_prompts(make: Callable[..., LLM]) -> None:
    sampling = [greedy(max_tokens=n, ignore_eos=True) for n in (7, 2, 5)]
    outputs = make(max_num_seqs=2).generate(["a", "b", "c"], sampling)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [7, 2, 5]
    assert {output.outputs[0].finish_reason for output in outputs} == {"length"}


def test_more_prompts_than_the_queue_holds_all_finish(make: Callable[..., LLM], runner: ScriptedRunner) -> None:
    outputs = make(max_queued_requests=3, max_num_seqs=2).generate(["a"] * 20, greedy(max_tokens=3))
    assert all(output.finished for output in outputs)
    assert runner.max_held <= 3


def test_n_completions_of_one_prompt(make: Callable[..., LLM]) -> None:
    (output,) = make().generate("hi", greedy(n=3))
    assert [(c.index, c.text) for c in output.outputs] == [(0, REPLY), (1, REPLY), (2, REPLY)]


def test_stop_string_truncates_and_frees_the_request(make: Callable[..., LLM], runner: ScriptedRunner) -> None:
    llm = make()
    (output,) = llm.generate("hi", greedy(stop=["o w"]))
    assert (output.outputs[0].text, output.outputs[0].stop_reason) == ("hell", "o w")
    assert (output.outputs[0].finish_reason, output.finished) == ("stop", True)
    assert llm.generate("again", greedy())[0].outputs[0].text == REPLY


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        ({"logit_bias": {"5": 1.0}}, "logit_bias"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids"),
        ({"min_tokens": "1"}, "min_tokens"),
        ({"top_k": 20.0}, "top_k"),
    ],
)
def test_sampling_of_the_wrong_type_is_refused_by_name(make: Callable[..., LLM], sampling: dict, field: str) -> None:
    llm = make()
    with pytest.raises(InvalidRequestError, match=field):
        llm.generate("hi", SamplingParams(**sampling))


def test_one_stop_string_stops_at_the_whole_of_it(make: Callable[..., LLM]) -> None:
    (output,) = make().generate("hi", greedy(stop="wor"))
    assert (output.outputs[0].text, output.outputs[0].stop_reason) == ("hello ", "wor")


def test_logprobs_by_token_id(make: Callable[..., LLM], tokenizer: Tokenizer) -> None:
    (output,) = make().generate("hi", greedy(max_tokens=2, logprobs=2))
    (completion,) = output.outputs
    assert completion.cumulative_logprob == -1.0
    assert completion.logprobs is not None and len(completion.logprobs) == 2
    chosen = completion.logprobs[0][completion.token_ids[0]]
    assert (chosen.logprob, chosen.rank) == (-0.5, 1)
    assert chosen.decoded_token == tokenizer.decode(completion.token_ids[:1])


def test_a_chosen_token_outside_the_top_has_no_rank(make: Callable[..., LLM]) -> None:
    (output,) = make().generate("hi", greedy(max_tokens=1, logprobs=0))
    assert [entry.rank for entry in output.outputs[0].logprobs[0].values()] == [None]


def test_repeated_prompt_reports_cached_tokens(make: Callable[..., LLM]) -> None:
    llm = make()
    prompt = [20] * 300
    assert llm.generate(prompt, greedy())[0].num_cached_tokens == 0
    assert llm.generate(prompt, greedy())[0].num_cached_tokens == 256


def test_chat_renders_the_template(make: Callable[..., LLM]) -> None:
    llm = make()
    (output,) = llm.chat([{"role": "user", "content": "hi"}], greedy())
    assert output.prompt is not None and output.prompt.endswith("]~b]user\nhi[e~[\n]~b]ai\n")
    assert output.prompt_token_ids[0] == 0
    assert output.outputs[0].text == REPLY


def test_chat_takes_priority_and_salt_as_generate_does(make: Callable[..., LLM]) -> None:
    llm = make(scheduling_policy="priority")
    messages = [{"role": "user", "content": "hi " * 300}]

    def cached_tokens(salt: str) -> int:
        return llm.chat(messages, greedy(), cache_salt=salt, priority=1)[0].num_cached_tokens

    assert (cached_tokens("a"), cached_tokens("b")) == (0, 0)
    assert cached_tokens("a") > 0
    with pytest.raises(InvalidRequestError, match="priority is 1"):
        make().chat(messages, greedy(), priority=1)


def test_request_ids_are_unique_within_one_llm(make: Callable[..., LLM]) -> None:
    llm = make()
    outputs = llm.generate(["a", "b"], greedy(n=2)) + llm.generate("c", greedy())
    assert len({output.request_id for output in outputs}) == 3


def test_several_conversations(make: Callable[..., LLM]) -> None:
    talks = [[{"role": "user", "content": text}] for text in ("a", "b")]
    assert [output.outputs[0].text for output in make().chat(talks, greedy())] == [REPLY, REPLY]


def test_defaults_come_from_the_checkpoint(make: Callable[..., LLM]) -> None:
    llm = make()
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0.7, top_k=40)
    assert len(llm.generate("hi")[0].outputs[0].token_ids) <= 16


def test_stream_yields_text_as_it_comes(make: Callable[..., LLM]) -> None:
    deltas = list(make().stream([20, 21], greedy()))
    assert "".join(delta.text for delta in deltas) == REPLY
    assert len(deltas) > 2 and deltas[-1].finish_reason == "stop"


def test_leaving_a_stream_frees_the_request(make: Callable[..., LLM], runner: ScriptedRunner) -> None:
    llm = make()
    stream = llm.stream([20, 21], greedy())
    next(stream)
    stream.close()
    assert not llm._engine.has_unfinished()
    assert llm.generate("hi", greedy())[0].outputs[0].text == REPLY


@pytest.mark.parametrize(
    ("prompts", "error", "words"),
    [
        pytest.param(["ok", ""], InvalidRequestError, "0 tokens", id="empty"),
        pytest.param([[5], [400]], InvalidRequestError, "token id 400", id="id-out-of-range"),
        pytest.param([[5] * 2048], ContextLengthError, "2048 tokens", id="too-long"),
        pytest.param([{"promt": "x"}], InvalidRequestError, "promt", id="unknown-key"),
        pytest.param([3.5], InvalidRequestError, "must be text or a list", id="number"),
        pytest.param([5, "a"], InvalidRequestError, "mixes token ids", id="id-beside-text"),
        pytest.param([[True]], InvalidRequestError, "must be text or a list", id="bool"),
    ],
)
def test_bad_prompts_are_refused_before_anything_runs(
    make: Callable[..., LLM], runner: ScriptedRunner, prompts: list, error: type[TamisError], words: str
) -> None:
    llm = make()
    with pytest.raises(error, match=words):
        llm.generate(prompts, greedy())
    assert runner.max_held == 0
    assert llm.generate("hi", greedy())[0].outputs[0].text == REPLY


def test_one_sampling_params_for_each_prompt_or_one_for_all(make: Callable[..., LLM]) -> None:
    with pytest.raises(InvalidRequestError, match="2 sampling_params for 1 prompts"):
        make().generate("hi", [greedy(), greedy()])


def test_a_failed_step_is_raised_and_the_next_call_works(
    make: Callable[..., LLM], runner: ScriptedRunner, caplog: pytest.LogCaptureFixture
) -> None:
    llm = make()
    runner.failing_steps = frozenset({0, 1})
    with pytest.raises(TamisError, match="RuntimeError"):
        llm.generate(["a", "b"], greedy())
    runner.failing_steps = frozenset()
    assert llm.generate("hi", greedy())[0].outputs[0].text == REPLY


def test_shutdown_frees_the_runner_once(make: Callable[..., LLM], runner: ScriptedRunner) -> None:
    with make() as llm:
        pass
    assert runner.is_shut_down
    llm.shutdown()
    with pytest.raises(TamisError, match="shut down"):
        llm.generate("hi", greedy())


@pytest.mark.parametrize(
    ("engine_args", "words"),
    [
        pytest.param({"max_model_length": 5}, "'max_model_length' is no engine argument", id="unknown"),
        pytest.param({"max_model_len": "long"}, "max_model_len is 'long'", id="type"),
        pytest.param({"max_num_seqs": 0}, "must be at least 1", id="value"),
        pytest.param({"device": "tpu"}, "device is 'tpu'", id="choice"),
        pytest.param({"attention_config": {"indexer_dtype": "fp8"}}, "'indexer_dtype' is no field", id="nested-name"),
        pytest.param(
            {"attention_config": {"indexer_kv_dtype": "int3"}}, "indexer_kv_dtype is 'int3'", id="nested-value"
        ),
    ],
)
def test_bad_engine_arguments(make: Callable[..., LLM], engine_args: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(**engine_args)


def test_an_unknown_argument_names_the_nearest(make: Callable[..., LLM]) -> None:
    with pytest.raises(ConfigError) as caught:
        make(max_model_length=5)
    assert caught.value.hint == "Did you mean 'max_model_len'?"


def test_nested_arguments_and_folder_reach_the_config(make: Callable[..., LLM], model_folder: Path) -> None:
    config = make(attention_config={"indexer_kv_dtype": "nvfp4"}, max_num_seqs=8).config
    assert (config.attention_config.indexer_kv_dtype, config.max_num_seqs) == ("nvfp4", 8)
    assert config.model == str(model_folder.resolve())


def test_a_tokenizer_larger_than_the_model_is_refused(model_folder: Path, runner: ScriptedRunner) -> None:
    with pytest.raises(CheckpointError, match=r"293 tokens, but the model only 200"):
        LLM(str(model_folder), load=lambda config, progress: (runner, info(config, vocab_size=200)))


def test_progress_is_written_to_stderr_only(
    model_folder: Path, runner: ScriptedRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(config: EngineConfig, progress: Callable[[str, int], None]) -> tuple[ScriptedRunner, EngineInfo]:
        for percent in range(101):
            progress("loading", percent)
        return runner, info(config)

    with LLM(str(model_folder), load=load, progress=True) as llm:
        llm.generate("hi", greedy())
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [f"loading {percent}%" for percent in range(0, 101, 10)] + ["generating 100%"]


def test_importing_llm_does_not_import_torch() -> None:
    code = "import sys, tamis.frontend.llm; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
