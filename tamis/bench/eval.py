"""`tamis bench eval`: what a model can do, measured through the engine that serves it.

    tamis bench eval MODEL --skills needle_32k,tool_call --kv-cache-dtype nvfp4
    python -m tamis.bench.eval --model MODEL …     # the same without the command line's packages

Held-out items go through template, tokenizer, scheduler, prefix cache and sampler, greedy, and are compared exactly. A
table goes to stdout; its last line is one JSON object.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args, get_type_hints

from tamis.bench.eval_config import EvalConfig
from tamis.bench.judge import Verdict, judge
from tamis.bench.perplexity import text_loss
from tamis.bench.questions import NEEDLES, PYTHON, Questions, chosen_skills, needle_questions, plain_questions
from tamis.config import EngineConfig
from tamis.engine.messages import EngineInfo
from tamis.engine.sampling_params import SamplingParams
from tamis.errors import ContextLengthError, TamisError
from tamis.frontend.llm import LLM
from tamis.frontend.outputs import RequestOutput
from tamis.runner import load_engine
from tamis.runner.model_runner import ModelRunner
from tamis.train.chats.render import BEGIN
from tamis.train.corpus import library_sources
from tamis.train.skills import Item
from tamis.version import __version__

_LONGEST_FILE_TOKENS = 4096
_ROOM_TOKENS = 2000  # a needle text's facts, question and answer beyond its filler

Say = Callable[[str], None]


def evaluate(config: EvalConfig, say: Say) -> dict[str, Any]:
    """Score a model.

    Args:
        say: is given a line for each skill when it is done, and wrong answers where asked for.

    Returns:
        The JSON object.
    """
    names = chosen_skills(config.skills)
    started = time.monotonic()
    runners: list[ModelRunner] = []

    def load(engine: EngineConfig, progress: Callable[[str, int], None]) -> tuple[ModelRunner, EngineInfo]:
        runner, info = load_engine(engine, progress)
        runners.append(runner)
        return runner, info

    with LLM(config.model, load=load, **config.engine_arguments()) as llm:
        loaded = time.monotonic()
        skills: dict[str, Any] = {}
        left_out: dict[str, str] = {}
        perplexity: dict[str, Any] | None = None
        # Perplexity comes first: it writes the pool's rows before the engine has any in use.
        for name in sorted(names, key=lambda name: name != PYTHON):
            if name == PYTHON and llm.info.max_model_len < 2:
                left_out[name] = "needs 2 tokens, the context has 1"
                continue
            if name == PYTHON:
                perplexity = _python_perplexity(llm, runners[0], config)
                say(f"python: perplexity {perplexity['perplexity']:.3f}")
                continue
            longest = NEEDLES.get(name, 0) + _ROOM_TOKENS
            if name in NEEDLES and longest > llm.info.max_model_len:
                left_out[name] = f"needs {longest} tokens, the context has {llm.info.max_model_len}"
                say(f"{name}: left out, {left_out[name]}")
                continue
            try:
                skills[name] = _score(llm, name, config, say)
            except ContextLengthError as error:
                left_out[name] = error.message
                say(f"{name}: left out, {left_out[name]}")
        pool = runners[0].pool
        index = {pool.index_lane(layer).format for layer in pool.layout.index}
        return {
            "what": "eval",
            "model": config.model,
            "weights": llm.info.card["weights"],
            "kv_format": pool.kv_lanes(0)[0].format,
            "index_format": "/".join(sorted(index)) or None,
            "contract": pool.contract,
            "selection": config.selection,
            "skills": {name: skills[name] for name in names if name in skills},
            "left_out": left_out,
            "python": perplexity,
            "context_tokens": llm.info.max_model_len,
            "load_s": round(loaded - started, 1),
            "seconds": round(time.monotonic() - started, 1),
            "device": _device_name(runners[0]),
            "card": dict(llm.info.card),
            "versions": {
                "tamis": __version__,
                "python": platform.python_version(),
                "torch": version("torch"),
                "numpy": version("numpy"),
                "tokenizers": version("tokenizers"),
            },
        }


def _score(llm: LLM, name: str, config: EvalConfig, say: Say) -> dict[str, Any]:
    started = time.monotonic()
    questions = _questions(llm, name, config)
    verdicts: list[Verdict] = []
    outputs: list[RequestOutput] = []
    wrong: list[tuple[Item, Verdict]] = []
    for done, group in enumerate(questions.groups):
        if done and questions.min_tokens:
            say(f"{name}: {done} of {len(questions.groups)} texts in {time.monotonic() - started:.0f} s")
        # The first question of a text alone: what it computes, the others find.
        parts = [group[:1], group[1:]] if len(questions.groups) > 1 or questions.min_tokens else [group]
        for part in parts:
            for item, output in zip(part, _answers(llm, part, questions.max_tokens), strict=True):
                verdict = judge(item, output.outputs[0].text)
                verdicts.append(verdict)
                outputs.append(output)
                if not verdict.right:
                    wrong.append((item, verdict))
    right = sum(verdict.right for verdict in verdicts)
    lengths = [len(output.prompt_token_ids) for output in outputs]
    result: dict[str, Any] = {
        "right": right,
        "total": len(verdicts),
        "share": round(right / len(verdicts), 4),
        "context_tokens": [min(lengths), max(lengths)],
        "seconds": round(time.monotonic() - started, 1),
    }
    if questions.min_tokens:
        result["texts"] = len(questions.groups)
        result["questions_a_text"] = len(questions.groups[0])
        result["cached_share"] = round(sum(o.num_cached_tokens for o in outputs) / sum(lengths), 4)
    if any(verdict.is_valid_call is not None for verdict in verdicts):
        result["valid_calls"] = sum(bool(verdict.is_valid_call) for verdict in verdicts)
    say(f"{name}: {right} of {len(verdicts)} in {result['seconds']} s")
    for item, verdict in wrong[: config.show_wrong]:
        say(f"  asked {item.messages[-1]['content'][-300:]!r}\n  said  {verdict.answer!r}\n  right {item.answer}")
    return result


def _questions(llm: LLM, name: str, config: EvalConfig) -> Questions:
    if name not in NEEDLES:
        return plain_questions(name, config.items, seed=config.seed)
    return needle_questions(
        name,
        config.items,
        questions_a_text=config.questions_a_text,
        seed=config.seed,
        num_tokens=lambda text: len(llm.tokenizer.encode(text)),
    )


def _answers(llm: LLM, items: Sequence[Item], max_tokens: int) -> list[RequestOutput]:
    """One greedy answer each, of one batch; tools and thinking mode are each item's own."""
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens)
    prompts = [
        {
            "prompt_token_ids": llm.tokenizer.encode_pieces(
                llm.template.render_pieces(
                    item.messages,
                    tools=item.tools or None,
                    template_kwargs={"thinking_mode": item.thinking_mode} if item.thinking_mode else None,
                )
            )
        }
        for item in items
    ]
    return llm.generate(prompts, sampling) if prompts else []


def _python_perplexity(llm: LLM, runner: ModelRunner, config: EvalConfig) -> dict[str, Any]:
    """Perplexity of library files that training leaves out, each from its beginning."""
    started = time.monotonic()
    longest = min(_LONGEST_FILE_TOKENS, llm.info.max_model_len)
    texts: list[list[int]] = []
    left, num_bytes = config.perplexity_tokens, 0
    for source in library_sources(held_out=True):
        ids = llm.tokenizer.encode(BEGIN + source)[: min(longest, left)]
        if len(ids) < 2:
            break
        texts.append(ids)
        left -= len(ids)
        num_bytes += len(llm.tokenizer.decode(ids[1:]).encode())
    loss = text_loss(runner, texts)
    return {
        "perplexity": round(loss.perplexity, 4),
        "nats_per_token": round(loss.nats_per_token, 5),
        "bits_per_byte": round(loss.nats / num_bytes / math.log(2), 5),
        "tokens": loss.num_tokens,
        "files": len(texts),
        "seconds": round(time.monotonic() - started, 1),
    }


def _device_name(runner: ModelRunner) -> str:
    if runner.device.type != "cuda":
        return f"{platform.machine()} CPU"
    import torch

    return torch.cuda.get_device_name(runner.device)


def table(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = [
        f"{report['model']}: weights {report['weights']}, KV {report['kv_format']}, index "
        f"{report['index_format']}, contract {report['contract']}, selection {report['selection']}",
        "",
        f"{'skill':<22}{'right':>7}{'of':>6}{'share':>9}{'context':>16}{'seconds':>9}",
    ]
    for name, found in report["skills"].items():
        low, high = found["context_tokens"]
        lines.append(
            f"{name:<22}{found['right']:>7}{found['total']:>6}{found['share']:>9.1%}{f'{low}-{high}':>16}"
            f"{found['seconds']:>9}"
        )
    lines += [f"{name:<22} left out: {why}" for name, why in report["left_out"].items()]
    if python := report["python"]:
        lines.append(
            f"\npython: perplexity {python['perplexity']:.3f}, {python['bits_per_byte']:.3f} bits a byte, over "
            f"{python['tokens']} tokens of {python['files']} held-out files"
        )
    return "\n".join(lines)


def run(config: EvalConfig) -> int:
    """Evaluate and print; returns the exit code."""
    report = evaluate(config, lambda line: print(line, file=sys.stderr, flush=True))
    print(table(report))
    text = json.dumps(report)
    if config.json_out is not None:
        Path(config.json_out).write_text(text + "\n", encoding="utf-8")
    print(text, flush=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    """Flags from the fields of `EvalConfig`, for machines without the command line's packages."""
    parser = argparse.ArgumentParser(prog="python -m tamis.bench.eval", description="Score a model's skills.")
    hints = get_type_hints(EvalConfig)
    for field in dataclasses.fields(EvalConfig):
        kind = hints[field.name]
        number = kind is int or int in get_args(kind)
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=int if number else str,
            default=field.default,
            help=field.metadata["help"].replace("%", "%%"),
        )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; an error is one sentence on stderr."""
    try:
        return run(EvalConfig(**vars(_parser().parse_args(argv))))
    except TamisError as error:
        print(f"error: {error.sentence()}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
