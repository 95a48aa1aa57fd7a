"""Prometheus metrics under vLLM's names, in a registry of their own.

Fed by app/answer.py with each delta, in plain numbers, because that is on the way of every token; Prometheus' own
counters and histograms take a lock and walk their buckets each time. Gauges and engine counters are read from the
engine's statistics when scraped.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from app.actor_metrics import ActorCollector
from app.distribution import Distribution
from app.engine import EngineClient

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LABELS = ["model_name", "engine"]
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
_REQUEST_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_REASONS = ("stop", "length", "abort", "error")


class Metrics:
    """All metrics of one API server."""

    def __init__(self, engine: EngineClient, model_name: str) -> None:
        self._registry = CollectorRegistry()
        labels = [model_name, "0"]
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generation_tokens = 0
        self.first_token = Distribution(_REQUEST_SECONDS)
        """Seconds from admission to a sequence's first token."""
        self.inter_token = Distribution(_TOKEN_SECONDS)
        """Seconds between tokens of one sequence, after the first."""
        self.whole_request = Distribution(_REQUEST_SECONDS)
        """Seconds from admission to a sequence's end."""
        self.ended_by_reason = Counter(dict.fromkeys(_REASONS, 0))
        self._registry.register(_EngineCollector(engine, labels))
        self._registry.register(_RequestCollector(self, labels))
        self._registry.register(ActorCollector(engine, model_name))

    def add(self, collector: Collector) -> None:
        """Have this read, too, when metrics are scraped."""
        self._registry.register(collector)

    def ended(self, reason: str) -> None:
        """One sequence ended with this finish reason, or "abort" when the client went away."""
        self.ended_by_reason[reason] += 1

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self._registry)


class _RequestCollector:
    """Tells at scrape time what was counted."""

    def __init__(self, metrics: Metrics, labels: list[str]) -> None:
        self._metrics = metrics
        self._labels = labels

    def collect(self) -> Iterable[Metric]:
        metrics = self._metrics
        yield self._counter("vllm:prompt_tokens", "Prompt tokens of started sequences.", metrics.prompt_tokens)
        yield self._counter(
            "vllm:prompt_tokens_cached", "Prompt tokens found in the prefix cache.", metrics.cached_tokens
        )
        yield self._counter("vllm:generation_tokens", "Tokens generated.", metrics.generation_tokens)
        yield self._histogram(
            "vllm:time_to_first_token_seconds", "From admission to a sequence's first token.", metrics.first_token
        )
        yield self._histogram(
            "vllm:inter_token_latency_seconds",
            "Between tokens of one sequence, after the first.",
            metrics.inter_token,
        )
        yield self._histogram(
            "vllm:e2e_request_latency_seconds", "From admission to a sequence's end.", metrics.whole_request
        )
        ended = CounterMetricFamily(
            "vllm:request_success", "Sequences that ended, by reason.", labels=[*_LABELS, "finished_reason"]
        )
        for reason, number in metrics.ended_by_reason.items():
            ended.add_metric([*self._labels, reason], number)
        yield ended

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family

    def _histogram(self, name: str, text: str, distribution: Distribution) -> Metric:
        family = HistogramMetricFamily(name, text, labels=_LABELS)
        buckets = [("+Inf" if bound == math.inf else str(bound), n) for bound, n in distribution.cumulative()]
        family.add_metric(self._labels, buckets, distribution.total)
        return family


_SLEEP_STATES = {"awake": None, "weights_offloaded": 1, "discard_all": 2}
"""vLLM's names, with their levels."""


class _EngineCollector:
    """Reads the engine's latest statistics at scrape time, so that no gauge needs to be kept in step."""

    def __init__(self, engine: EngineClient, labels: list[str]) -> None:
        self._engine = engine
        self._labels = labels

    def collect(self) -> Iterable[Metric]:
        stats = self._engine.stats
        total = max(stats.kv_blocks_total, 1)
        yield self._gauge("vllm:num_requests_running", "Sequences in the running batch.", stats.num_requests_running)
        yield self._gauge("vllm:num_requests_waiting", "Sequences waiting to be scheduled.", stats.num_requests_waiting)
        yield self._gauge(
            "vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", min(stats.kv_blocks_used / total, 1.0)
        )
        yield self._counter("vllm:num_preemptions", "Sequences pushed out of the batch.", stats.num_preemptions)
        yield self._counter(
            "vllm:prefix_cache_queries", "Tokens looked for in the prefix cache.", stats.prefix_cache_queries
        )
        yield self._counter("vllm:prefix_cache_hits", "Tokens found in the prefix cache.", stats.prefix_cache_hits)
        yield self._counter("vllm:spec_decode_num_drafts", "Guesses at what follows.", stats.spec_decode_num_drafts)
        yield self._counter(
            "vllm:spec_decode_num_draft_tokens", "Tokens in these guesses.", stats.spec_decode_num_draft_tokens
        )
        yield self._counter(
            "vllm:spec_decode_num_accepted_tokens", "Guessed tokens kept.", stats.spec_decode_num_accepted_tokens
        )
        yield self._counter("trillm:engine_steps", "Steps of the engine's loop.", stats.num_steps)
        yield self._gauge(
            "trillm:requests_live", "Sequences of this API server that have not ended.", self._engine.num_requests
        )
        yield self._sleep_state()
        yield self._gauge("trillm:ready", "1 if requests are taken.", float(self._engine.readiness.ready))

    def _sleep_state(self) -> Metric:
        level = self._engine.run_state.sleep_level
        text = "1 for what the engine is; none of these at sleep level 0."
        family = GaugeMetricFamily("vllm:engine_sleep_state", text, labels=[*_LABELS, "sleep_state"])
        for name, its_level in _SLEEP_STATES.items():
            family.add_metric([*self._labels, name], float(level == its_level))
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=_LABELS)
        family.add_metric(self._labels, max(value, 0))
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=_LABELS)
        family.add_metric(self._labels, max(value, 0))
        return family
