"""What requests took, under vLLM's names: counted by app/answer.py, told by app/metrics.py when scraped.

In plain numbers, because it is on the way of every token; Prometheus' own counters and histograms take a lock and walk
their buckets each time. Times of the engine's phases come from its own clock (protocol/timeline.py), the others from
when the app had the tokens to tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import final

from attrs import frozen
from prometheus_client.metrics_core import Metric

from app.distribution import Distribution
from app.metric_families import Families
from protocol.ids import EngineIndex
from protocol.timeline import Timeline

# vLLM's bounds, and finer ones below where small models are.
TOKEN_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
FIRST_TOKEN_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
REQUEST_SECONDS = (
    *(0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0),
    *(60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TOKENS = (*(mantissa * 10**exponent for exponent in range(6) for mantissa in (1, 2, 5)), 1_000_000)
CHOICES = (1, 2, 5, 10, 20)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
REASONS = ("stop", "length", "abort", "error")


@frozen
class EndedSequence:
    """A sequence that has its last output."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_tokens: int
    max_tokens: int
    timeline: Timeline | None
    """None: it was never given a place in a step."""


@final
class Requests:
    """Of one API server, with all its engines."""

    def __init__(self) -> None:
        self.num_open = 0
        """Answers that are being given."""
        self._engines: dict[EngineIndex, RequestMetrics] = {}

    def of(self, index: EngineIndex) -> RequestMetrics:
        metrics = self._engines.get(index)
        if metrics is None:
            metrics = self._engines[index] = RequestMetrics()
        return metrics


@final
class RequestMetrics:
    """Of one API server and one engine. A sequence is one choice of an answer; what goes on after a death is the same
    sequence, and counts where it ends."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generation_tokens = 0
        self.ended_by_reason = Counter(dict.fromkeys(REASONS, 0))
        self.first_token = Distribution(FIRST_TOKEN_SECONDS)
        """Seconds from admission to a sequence's first token."""
        self.inter_token = Distribution(TOKEN_SECONDS)
        """Seconds between tokens of one sequence, after the first."""
        self.whole_request = Distribution(REQUEST_SECONDS)
        """Seconds from admission to a sequence's end."""
        self._per_token = Distribution(TOKEN_SECONDS)
        self._queue = Distribution(REQUEST_SECONDS)
        self._prefill = Distribution(REQUEST_SECONDS)
        self._decode = Distribution(REQUEST_SECONDS)
        self._inference = Distribution(REQUEST_SECONDS)
        self._prompt_lengths = Distribution(TOKENS)
        self._computed_lengths = Distribution(TOKENS)
        self._output_lengths = Distribution(TOKENS)
        self._longest_outputs = Distribution(TOKENS)
        self._max_tokens = Distribution(TOKENS)
        self._n = Distribution(CHOICES)
        self._preemptions = Distribution(PREEMPTIONS)

    def left(self) -> None:
        """One sequence was given up by its client before it had its end."""
        self.ended_by_reason["abort"] += 1

    def ended(self, reason: str, sequence: EndedSequence) -> None:
        self.ended_by_reason[reason] += 1
        self._prompt_lengths.observe(sequence.num_prompt_tokens)
        self._computed_lengths.observe(sequence.num_prompt_tokens - sequence.num_cached_tokens)
        self._output_lengths.observe(sequence.num_tokens)
        self._max_tokens.observe(sequence.max_tokens)
        if (times := sequence.timeline) is None:
            return
        decode = max(0.0, times.last_at - times.first_token_at)
        self._queue.observe(max(0.0, times.scheduled_at - times.arrived_at))
        self._prefill.observe(max(0.0, times.first_token_at - times.scheduled_at))
        self._decode.observe(decode)
        self._inference.observe(max(0.0, times.last_at - times.scheduled_at))
        self._preemptions.observe(times.num_preemptions)
        if sequence.num_tokens > 1:
            self._per_token.observe(decode / (sequence.num_tokens - 1))

    def all_ended(self, num_tokens: Sequence[int]) -> None:
        """All choices of one prompt have their ends, each with so many tokens."""
        self._n.observe(len(num_tokens))
        self._longest_outputs.observe(max(num_tokens))

    def collect(self, families: Families) -> Iterable[Metric]:
        counter = families.counter
        yield counter("vllm:prompt_tokens", "Prompt tokens of started sequences.", self.prompt_tokens)
        yield counter("vllm:prompt_tokens_cached", "Prompt tokens found in the prefix cache.", self.cached_tokens)
        yield families.counters(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens by where their keys and values came from.",
            "source",
            {"local_compute": self.prompt_tokens - self.cached_tokens, "local_cache_hit": self.cached_tokens},
        )
        yield counter("vllm:generation_tokens", "Tokens generated.", self.generation_tokens)
        reasons = self.ended_by_reason
        yield families.counters("vllm:request_success", "Sequences that ended, by reason.", "finished_reason", reasons)
        for name, text, distribution in self._distributions():
            yield families.histogram(f"vllm:{name}", text, distribution)

    def _distributions(self) -> Iterable[tuple[str, str, Distribution]]:
        yield "time_to_first_token_seconds", "From admission to a sequence's first token.", self.first_token
        yield "inter_token_latency_seconds", "Between tokens of one sequence, after the first.", self.inter_token
        yield "e2e_request_latency_seconds", "From admission to a sequence's end.", self.whole_request
        text = "Mean time between a sequence's tokens, of each that has two or more."
        yield "request_time_per_output_token_seconds", text, self._per_token
        yield "request_queue_time_seconds", "From admission to a sequence's first step.", self._queue
        yield "request_prefill_time_seconds", "From a sequence's first step to its first token.", self._prefill
        yield "request_decode_time_seconds", "From a sequence's first token to its last.", self._decode
        yield "request_inference_time_seconds", "From a sequence's first step to its last token.", self._inference
        yield "request_prompt_tokens", "Prompt tokens of a sequence.", self._prompt_lengths
        text = "Prompt tokens of a sequence that were not in the prefix cache."
        yield "request_prefill_kv_computed_tokens", text, self._computed_lengths
        yield "request_generation_tokens", "Tokens generated of a sequence.", self._output_lengths
        text = "Tokens generated of the longest choice of a prompt."
        yield "request_max_num_generation_tokens", text, self._longest_outputs
        yield "request_params_n", "Choices of a prompt.", self._n
        yield "request_params_max_tokens", "Tokens that a sequence might have had.", self._max_tokens
        yield "request_num_preemptions", "Times that a sequence lost its blocks to others.", self._preemptions
