"""Prometheus metrics under vLLM's names, so that existing dashboards work; what is ours is `tamis:`."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tamis.engine.messages import EngineStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LATENCY_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_LENGTH_BUCKETS_TOKENS = (1, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)
_LABEL = "model_name"


class Metrics:
    """All metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.engine = EngineCollector()
        self.registry.register(self.engine)
        self.responses = self._counter("tamis:http_responses", "HTTP responses by status.", "code")
        self.success = self._counter("vllm:request_success", "Finished choices by reason.", "finished_reason", _LABEL)
        self.first_token_s = self._histogram("vllm:time_to_first_token_seconds", "Arrival to first token.")
        self.inter_token_s = self._histogram(
            "vllm:inter_token_latency_seconds", "Between tokens of a choice.", _TOKEN_BUCKETS_S
        )
        self.per_token_s = self._histogram(
            "vllm:request_time_per_output_token_seconds", "Mean of a choice, first token left out.", _TOKEN_BUCKETS_S
        )
        self.end_to_end_s = self._histogram("vllm:e2e_request_latency_seconds", "Arrival to last token of a choice.")
        self.queued_s = self._histogram("vllm:request_queue_time_seconds", "Arrival to first scheduled.")
        self.prompt_tokens = self._histogram(
            "vllm:request_prompt_tokens", "Prompt tokens of a request.", _LENGTH_BUCKETS_TOKENS
        )
        self.generation_tokens = self._histogram(
            "vllm:request_generation_tokens", "Tokens generated for a choice.", _LENGTH_BUCKETS_TOKENS
        )

    def count_response(self, status: int) -> None:
        """Count one HTTP response; 499 is a client that went away first."""
        self.responses.labels(str(status)).inc()

    def exposition(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(name, help, labels, registry=self.registry)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...] = _LATENCY_BUCKETS_S) -> Histogram:
        return Histogram(name, help, (_LABEL,), buckets=buckets, registry=self.registry)


class EngineCollector(Collector):
    """The engine's own gauges and counters, as of the last `EngineStats` given to `update`."""

    def __init__(self) -> None:
        self.model_name = ""
        self.up = False
        self.stats = EngineStats()

    def update(self, model_name: str, stats: EngineStats) -> None:
        """Take over a fresh snapshot."""
        self.model_name = model_name
        self.stats = stats

    def collect(self) -> Iterator[Metric]:
        """Called by the registry at every scrape."""
        stats = self.stats
        free = stats.num_free_blocks
        total = free + stats.num_used_blocks
        yield self._gauge("tamis:engine_up", "1 while the engine serves.", float(self.up))
        yield self._gauge("vllm:num_requests_running", "Sequences in the running batch.", stats.num_running)
        yield self._gauge("vllm:num_requests_waiting", "Sequences in the queue.", stats.num_waiting)
        yield self._gauge(
            "vllm:kv_cache_usage_perc", "Share of blocks in use, 0 to 1.", stats.num_used_blocks / total if total else 0
        )
        yield self._gauge("tamis:free_blocks", "Blocks that no request holds; some still cache a prefix.", free)
        yield self._gauge("tamis:cached_blocks", "Free blocks that hold a prefix.", stats.num_cached_blocks)
        yield self._gauge("tamis:used_blocks", "Blocks held by requests.", stats.num_used_blocks)
        yield self._gauge("tamis:leaked_blocks", "Blocks held by no live request: a bug.", stats.num_leaked_blocks)
        yield self._gauge("tamis:step_seconds", "Seconds of the last engine step.", stats.step_s)
        yield self._count("vllm:prefix_cache_queries", "Prompt tokens looked up.", stats.prefix_queries_tokens)
        yield self._count("vllm:prefix_cache_hits", "Prompt tokens found.", stats.prefix_hits_tokens)
        yield self._count("vllm:num_preemptions", "Requests preempted.", stats.preemptions)
        yield self._count("vllm:prompt_tokens", "Tokens of admitted prompts, cached ones too.", stats.prompt_tokens)
        yield self._count("vllm:generation_tokens", "Tokens generated.", stats.generation_tokens)
        yield self._count("tamis:engine_steps", "Engine steps.", stats.steps)

    def _gauge(self, name: str, help: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, help, labels=[_LABEL])
        family.add_metric([self.model_name], value)
        return family

    def _count(self, name: str, help: str, value: float) -> Metric:
        family = CounterMetricFamily(name, help, labels=[_LABEL])
        family.add_metric([self.model_name], value)
        return family


class RequestTimer:
    """Observes one API request: call `token` for every delta with tokens, `finish` at the end of each choice."""

    def __init__(self, metrics: Metrics, model_name: str, num_prompt_tokens: int):
        self._metrics = metrics
        self._model = model_name
        self._arrived_s = time.monotonic()
        self._choices: dict[int, _ChoiceTimes] = {}
        metrics.prompt_tokens.labels(model_name).observe(num_prompt_tokens)

    def tokens(self, choice: int, num_tokens: int, queued_s: float) -> None:
        """`num_tokens` have arrived together for a choice."""
        now_s = time.monotonic()
        times = self._choices.get(choice)
        if times is None:
            self._choices[choice] = _ChoiceTimes(now_s, num_tokens)
            self._metrics.first_token_s.labels(self._model).observe(now_s - self._arrived_s)
            self._metrics.queued_s.labels(self._model).observe(queued_s)
            return
        each_s = (now_s - times.last_s) / num_tokens
        observe = self._metrics.inter_token_s.labels(self._model).observe
        for _ in range(num_tokens):
            observe(each_s)
        times.last_s = now_s
        times.num_tokens += num_tokens

    def finish(self, choice: int, reason: str) -> None:
        """A choice has ended."""
        now_s = time.monotonic()
        self._metrics.success.labels(reason, self._model).inc()
        self._metrics.end_to_end_s.labels(self._model).observe(now_s - self._arrived_s)
        times = self._choices.get(choice)
        if times is None:
            return
        self._metrics.generation_tokens.labels(self._model).observe(times.num_tokens)
        if times.num_tokens > 1:
            per_token_s = (times.last_s - times.first_s) / (times.num_tokens - 1)
            self._metrics.per_token_s.labels(self._model).observe(per_token_s)


class _ChoiceTimes:
    def __init__(self, first_s: float, num_tokens: int):
        self.first_s = first_s
        self.last_s = first_s
        self.num_tokens = num_tokens
