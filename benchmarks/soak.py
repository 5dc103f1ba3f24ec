"""Soak: many mixed requests with random aborts against a real server, then a look at what is left behind.

    python benchmarks/soak.py --seconds 60 --concurrency 200
    python benchmarks/soak.py --model DIR --load-format dummy -- --num-gpu-blocks-override 64

What stands after `--` goes to `tamis serve`. Requests are chats and completions, streaming and not, with shared
prefixes, several choices, text and token ids, some invalid; a share of them is dropped half-way. Greedy requests of
equal prompt must agree, whatever the load. In the end the server must be idle: nothing running, no block used or
leaked, no 5xx, exit code 0. The last line of stdout is one JSON object; the exit code is 1 on any violation.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import random
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil
from rich.console import Console
from rich.table import Table

from tamis.cli.server_process import ServerProcess, ServerProcessError, serve_command

REQUEST_TIMEOUT_S = 300.0
IDLE_TIMEOUT_S = 60.0
SAMPLE_S = 1.0
ABORT_SHARE = 0.3
INVALID_SHARE = 0.08
MAX_VIOLATIONS_SHOWN = 20
WORDS = [
    "the",
    "block",
    "of",
    "a",
    "cache",
    "holds",
    "keys",
    "and",
    "values",
    "for",
    "every",
    "token",
    "that",
    "was",
    "read",
    "before",
    "it",
]
INVALID: list[dict[str, Any]] = [
    {"temperature": -1},
    {"max_tokens": 10**9},
    {"n": 0},
    {"temprature": 1},
    {"logit_bias": {"x": 1}},
    {"stop": [""]},
    {"tool_choice": "auto"},
]


@dataclass
class Tally:
    """What happened so far."""

    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    violations: list[str] = field(default_factory=list)
    first_token_s: list[float] = field(default_factory=list)
    completion_tokens: int = 0
    cached_tokens: int = 0
    greedy_texts: dict[str, str] = field(default_factory=dict)

    def violate(self, what: str) -> None:
        self.outcomes["violation"] += 1
        if what not in self.violations and len(self.violations) < MAX_VIOLATIONS_SHOWN:
            self.violations.append(what)

    def check_greedy(self, prompt: str, text: str) -> None:
        """Answers to one prompt may end at different lengths, but never differ."""
        text = text.rstrip("\ufffd")  # max_tokens may cut a character
        known = self.greedy_texts.get(prompt, "")
        length = min(len(known), len(text))
        if known[:length] != text[:length]:
            self.violate(f"greedy texts differ: {known[:60]!r} and {text[:60]!r}")
        if len(text) > len(known):
            self.greedy_texts[prompt] = text


class Client:
    """One of the concurrent users: sends requests until told to stop."""

    def __init__(self, http: httpx.AsyncClient, context_tokens: int, tally: Tally, rng: random.Random):
        self._http = http
        self._tally = tally
        self._rng = rng
        # A word is at most a handful of tokens, whatever the tokenizer.
        self._longest_words = max(8, min(400, context_tokens // 16))

    async def run(self, until_s: float) -> None:
        while time.monotonic() < until_s:
            path, body, expected = self._request()
            if expected == 200 and self._rng.random() < ABORT_SHARE:
                await self._send_and_leave(path, body)
            else:
                await self._send(path, body, expected)

    def _request(self) -> tuple[str, dict[str, Any], int]:
        rng = self._rng
        body: dict[str, Any] = {"max_tokens": rng.choice([1, 2, 5, 10, 20, 40]), "stream": rng.random() < 0.5}
        is_greedy = rng.random() < 0.4
        # Few greedy prompts, so that they meet under different loads; the others share long prefixes.
        if is_greedy:
            body["temperature"] = 0
            text = " ".join(random.Random(rng.randrange(12)).choices(WORDS, k=self._longest_words // 2))
        else:
            body |= rng.choice([{}, {"seed": rng.randrange(9)}, {"top_p": 0.9, "top_k": 20}, {"logprobs": 1}])
            prefix = random.Random(rng.randrange(6)).choices(WORDS, k=rng.randrange(self._longest_words))
            text = " ".join(prefix + rng.choices(WORDS, k=rng.randrange(1, 8)))
            if rng.random() < 0.2:
                body["n"] = rng.randrange(2, 4)
            if rng.random() < 0.2:
                body["stop"] = ["the"]
            if rng.random() < 0.2:
                body["cache_salt"] = "tenant"
        if body["stream"]:
            body["stream_options"] = {"include_usage": True}
        is_chat = rng.random() < 0.5
        if is_chat:
            body["messages"] = [{"role": "user", "content": text}]
            if "logprobs" in body:
                body |= {"logprobs": True, "top_logprobs": 2}
        else:
            kinds: list[Any] = (
                [text] if is_greedy else [text, [text, text[:20]], [rng.randrange(200) for _ in range(9)]]
            )
            body["prompt"] = rng.choice(kinds)
        path = "/v1/chat/completions" if is_chat else "/v1/completions"
        if rng.random() < INVALID_SHARE:
            return path, body | rng.choice(INVALID), 400
        return path, body, 200

    async def _send(self, path: str, body: dict[str, Any], expected: int) -> None:
        try:
            if body["stream"] and expected == 200:
                await self._stream(path, body)
            else:
                await self._whole(path, body, expected)
        except httpx.HTTPError as error:
            self._tally.violate(f"no answer: {type(error).__name__} {error}")

    async def _whole(self, path: str, body: dict[str, Any], expected: int) -> None:
        response = await self._http.post(path, json=body)
        if not self._check_status(response.status_code, expected, response.text) or expected != 200:
            return
        answer = response.json()
        texts = [
            choice["message"]["content"] if "message" in choice else choice["text"] for choice in answer["choices"]
        ]
        self._finish(body, texts, [choice["finish_reason"] for choice in answer["choices"]], answer["usage"])

    async def _stream(self, path: str, body: dict[str, Any]) -> None:
        started_s = time.monotonic()
        texts: dict[int, str] = {}
        reasons: list[str] = []
        usage: dict[str, Any] | None = None
        done = False
        async with self._http.stream("POST", path, json=body) as response:
            if response.status_code != 200:
                self._check_status(response.status_code, 200, (await response.aread()).decode())
                return
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    done = True
                elif line.startswith("data: "):
                    event = json.loads(line[6:])
                    if "error" in event:
                        self._tally.violate(f"error in a stream: {event['error']['message'][:120]}")
                        return
                    if not texts and event["choices"]:
                        self._tally.first_token_s.append(time.monotonic() - started_s)
                    usage = event.get("usage") or usage
                    for choice in event["choices"]:
                        piece = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
                        texts[choice["index"]] = texts.get(choice["index"], "") + piece
                        reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
        if not done or usage is None:
            self._tally.violate("a stream ended without [DONE] or usage")
            return
        self._tally.outcomes["streamed"] += 1
        self._finish(body, [texts[index] for index in sorted(texts)], reasons, usage)

    def _check_status(self, status: int, expected: int, text: str) -> bool:
        if status == 429:
            self._tally.outcomes["overloaded"] += 1
            return False
        self._tally.outcomes[str(status)] += 1
        if status != expected:
            self._tally.violate(f"status {status} instead of {expected}: {text[:200]}")
        return status == expected

    def _finish(self, body: dict[str, Any], texts: list[str], reasons: list[str], usage: dict[str, Any]) -> None:
        prompt = body.get("prompt")
        num_prompts = len(prompt) if isinstance(prompt, list) and isinstance(prompt[0], str) else 1
        expected = num_prompts * body.get("n", 1)
        if len(texts) != expected or len(reasons) != expected:
            self._tally.violate(f"{len(texts)} texts and {len(reasons)} ends instead of {expected}")
        if not set(reasons) <= {"stop", "length"}:
            self._tally.violate(f"finish reasons {reasons}")
        if usage["completion_tokens"] > expected * body["max_tokens"]:
            self._tally.violate(f"{usage['completion_tokens']} tokens for {expected} x {body['max_tokens']}")
        self._tally.outcomes["finished"] += 1
        self._tally.completion_tokens += usage["completion_tokens"]
        self._tally.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]
        if body.get("temperature") == 0:
            self._tally.check_greedy(json.dumps(body.get("messages") or prompt), texts[0])

    async def _send_and_leave(self, path: str, body: dict[str, Any]) -> None:
        sending = asyncio.create_task(self._send(path, body, 200))
        await asyncio.wait({sending}, timeout=self._rng.expovariate(2.0))
        if sending.done():
            return
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sending
        self._tally.outcomes["aborted"] += 1


async def gauges(http: httpx.AsyncClient) -> dict[str, float]:
    """Metric name → value, labels summed over; 5xx responses under "5xx"."""
    values: dict[str, float] = collections.defaultdict(float)
    for line in (await http.get("/metrics")).text.splitlines():
        if line.startswith("#"):
            continue
        name, value = line.rsplit(" ", 1)
        if name.startswith('tamis:http_responses_total{code="5'):
            values["5xx"] += float(value)
        values[name.partition("{")[0]] += float(value)
    return values


async def wait_idle(http: httpx.AsyncClient) -> dict[str, float]:
    """The metrics once nothing runs, or when the wait is given up."""
    deadline_s = time.monotonic() + IDLE_TIMEOUT_S
    while True:
        now = await gauges(http)
        is_idle = now["vllm:num_requests_running"] == now["vllm:num_requests_waiting"] == now["tamis:used_blocks"] == 0
        if is_idle or time.monotonic() > deadline_s:
            return now
        await asyncio.sleep(0.2)


def check_left_behind(before: dict[str, float], after: dict[str, float], tally: Tally) -> None:
    """Compare an idle server with a fresh one."""
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "tamis:leaked_blocks", "tamis:used_blocks"):
        if after[name] != 0:
            tally.violate(f"{name} is {after[name]:g} after the run")
    if after["tamis:free_blocks"] != before["tamis:free_blocks"]:
        tally.violate(f"{after['tamis:free_blocks']:g} blocks are free, but were {before['tamis:free_blocks']:g}")
    # Before: what /health said while the model was loading.
    if num_5xx := after["5xx"] - before["5xx"]:
        tally.violate(f"{num_5xx:g} responses were 5xx")


async def sample_memory(pid: int, samples: list[tuple[float, float]]) -> None:
    """Append (seconds, MiB of the server and its children) until cancelled."""
    server = psutil.Process(pid)
    started_s = time.monotonic()
    while True:
        processes = [server, *server.children(recursive=True)]
        with contextlib.suppress(psutil.NoSuchProcess):
            rss_mib = sum(process.memory_info().rss for process in processes) / 2**20
            samples.append((time.monotonic() - started_s, rss_mib))
        await asyncio.sleep(SAMPLE_S)


def cpu_seconds(pid: int) -> tuple[float, float]:
    """Processor seconds so far of the server process, and of the engine under it."""
    server = psutil.Process(pid)
    own, *engine = [sum(process.cpu_times()[:2]) for process in (server, *server.children(recursive=True))]
    return own, sum(engine)


def slope_mib_per_min(samples: list[tuple[float, float]]) -> float:
    """Of the second half: caches and the pool fill up in the first."""
    half = samples[len(samples) // 2 :]
    if len(half) < 3:
        return 0.0
    return 60 * statistics.linear_regression(*zip(*half, strict=True)).slope


async def soak(url: str, pid: int, options: argparse.Namespace, tally: Tally) -> dict[str, Any]:
    """Run the load against a ready server and return the figures."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=options.concurrency)
    samples: list[tuple[float, float]] = []
    async with httpx.AsyncClient(base_url=url, timeout=REQUEST_TIMEOUT_S, limits=limits, verify=False) as http:
        model = (await http.get("/v1/models")).json()["data"][0]
        before = await gauges(http)
        cpu_before = cpu_seconds(pid)
        sampling = asyncio.create_task(sample_memory(pid, samples))
        started_s = time.monotonic()
        users = [
            Client(http, model["max_model_len"], tally, random.Random(options.seed * 1_000_003 + i))
            for i in range(options.concurrency)
        ]
        await asyncio.gather(*(user.run(started_s + options.seconds) for user in users))
        seconds = time.monotonic() - started_s
        after = await wait_idle(http)
        server_cpu_s, engine_cpu_s = (now - then for now, then in zip(cpu_seconds(pid), cpu_before, strict=True))
        sampling.cancel()
        await asyncio.gather(sampling, return_exceptions=True)
        check_left_behind(before, after, tally)
    return {
        "model": model["id"],
        "seconds": round(seconds, 1),
        "concurrency": options.concurrency,
        "requests": dict(sorted(tally.outcomes.items())),
        "completion_tokens": tally.completion_tokens,
        "tokens_per_s": round(after["vllm:generation_tokens_total"] / seconds, 1),
        "cached_tokens": tally.cached_tokens,
        "ttft_p50_s": round(statistics.median(tally.first_token_s), 3) if tally.first_token_s else None,
        "preemptions": int(after["vllm:num_preemptions_total"]),
        "leaked_blocks": int(after["tamis:leaked_blocks"]),
        "free_blocks": int(after["tamis:free_blocks"]),
        "steps": int(after["tamis:engine_steps_total"]),
        "prompt_tokens": int(after["vllm:prompt_tokens_total"]),
        "server_cpu_s": round(server_cpu_s, 1),
        "engine_cpu_s": round(engine_cpu_s, 1),
        "rss_mib": round(samples[-1][1]) if samples else None,
        "rss_slope_mib_per_min": round(slope_mib_per_min(samples), 2),
    }


def parse_options(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The script's options, and the flags for `tamis serve` behind `--`."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--concurrency", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", help="folder or hub id; the bundled model when left out")
    parser.add_argument("--load-format", choices=["auto", "dummy"], default="auto")
    options = parser.parse_args(arguments[:at])
    flags = [options.model] if options.model else []
    return options, [*flags, "--load-format", options.load_format, *arguments[at + 1 :]]


def main(arguments: list[str]) -> int:
    """Returns 0 when nothing was violated, else 1."""
    options, flags = parse_options(arguments)
    console = Console(stderr=True)
    tally = Tally()
    figures: dict[str, Any] = {}
    try:
        with ServerProcess(serve_command(flags)) as server:
            server.wait_ready(lambda stage, percent: console.print(f"{stage} {percent}%", highlight=False))
            console.print(f"{options.concurrency} clients for {options.seconds:g} s against {server.url}")
            figures = asyncio.run(soak(server.url, server.pid, options, tally))
            server.stop()
            if "Traceback" in server.log_tail():
                tally.violate("the server's log ends with a traceback")
    except ServerProcessError as error:
        tally.violate(error.sentence())
        console.print(error.log_tail, markup=False, highlight=False)
    figures = {"benchmark": "soak", "ok": not tally.violations, **figures, "violations": tally.violations}
    table = Table("soak", "", show_header=False)
    for name, value in figures.items():
        table.add_row(name, "\n".join(value) if isinstance(value, list) else str(value))
    console.print(table)
    print(json.dumps(figures))
    return 1 if tally.violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
