"""The figures of a load. Pure; names and definitions are those of `vllm bench serve`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median, pstdev

from attrs import frozen

from app.commands.bench_call import Outcome


@frozen
class Spread:
    """Of times in milliseconds; zeros if there are none."""

    mean: float
    median: float
    std: float
    percentiles: dict[float, float]
    """By percent."""

    @classmethod
    def of(cls, seconds: Sequence[float], percents: Sequence[float]) -> Spread:
        values = sorted(1000 * value for value in seconds) or [0.0]
        shares = {percent: percentile(values, percent) for percent in percents}
        return cls(fmean(values), median(values), pstdev(values), shares)


@frozen
class Figures:
    completed: int
    failed: int
    seconds: float
    total_input: int
    total_output: int
    counts_events: bool
    """The server did not tell how many tokens there were: output tokens are events with text, input tokens nothing."""
    num_good: int
    """That kept to all service levels."""
    max_output_tokens_per_s: float
    """In the best second; of a load that took less than one, its mean."""
    max_concurrent_requests: int
    spreads: dict[str, Spread]
    """By metric: ttft, tpot, itl and e2el."""

    @property
    def request_throughput(self) -> float:
        return self.completed / self.seconds

    @property
    def request_goodput(self) -> float:
        return self.num_good / self.seconds

    @property
    def output_throughput(self) -> float:
        return self.total_output / self.seconds

    @property
    def total_token_throughput(self) -> float:
        return (self.total_input + self.total_output) / self.seconds


def figures_of(
    outcomes: Sequence[Outcome], seconds: float, percents: Sequence[float], levels: Mapping[str, float]
) -> Figures:
    """`levels`: milliseconds that a good request keeps to, by metric."""
    good = [outcome for outcome in outcomes if not outcome.error]
    spreads = {
        "ttft": Spread.of([outcome.ttft for outcome in good], percents),
        "tpot": Spread.of([tpot for outcome in good if (tpot := outcome.tpot) is not None], percents),
        "itl": Spread.of([gap for outcome in good for gap in outcome.gaps], percents),
        "e2el": Spread.of([outcome.latency for outcome in good], percents),
    }
    total_output = sum(outcome.num_output_tokens for outcome in good)
    seconds = max(seconds, 1e-9)
    return Figures(
        completed=len(good),
        failed=len(outcomes) - len(good),
        seconds=seconds,
        total_input=sum(outcome.num_prompt_tokens for outcome in good),
        total_output=total_output,
        counts_events=any(outcome.num_tokens is None for outcome in good),
        num_good=sum(keeps(outcome, levels) for outcome in good),
        max_output_tokens_per_s=max(busiest_second(good), total_output / seconds),
        max_concurrent_requests=most_at_once(good),
        spreads=spreads,
    )


def keeps(outcome: Outcome, levels: Mapping[str, float]) -> bool:
    """Whether it kept to the service levels; an answer of one token has no time per token to miss."""
    took = {"ttft": outcome.ttft, "tpot": outcome.tpot or 0.0, "e2el": outcome.latency}
    return all(1000 * took[name] <= most for name, most in levels.items())


def percentile(ranked: Sequence[float], percent: float) -> float:
    """Between the two nearest ranks, as numpy does by default. `ranked` has one value or more."""
    place = (len(ranked) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ranked) - 1)
    return ranked[below] + (ranked[above] - ranked[below]) * (place - below)


def busiest_second(outcomes: Sequence[Outcome]) -> float:
    """Output tokens in it; those of an answer are taken to be spread evenly over its events."""
    seconds: dict[int, float] = {}
    for outcome in outcomes:
        for at in outcome.times:
            seconds[int(at)] = seconds.get(int(at), 0.0) + outcome.num_output_tokens / len(outcome.times)
    return max(seconds.values(), default=0.0)


def most_at_once(outcomes: Sequence[Outcome]) -> int:
    """Requests that were under way together."""
    changes = sorted(
        change for outcome in outcomes for change in ((outcome.began, 1), (outcome.began + outcome.latency, -1))
    )
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most
