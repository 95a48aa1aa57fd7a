"""Which figures are made of the raw numbers: a section for each table, a row for each figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from scripts.benchmark.compare.results import Level, PlanRecord, ServerResults, Turn
from scripts.benchmark.figure import Figure
from scripts.benchmark.statistics import Spread, percentile

OfTurn = Callable[[Turn], float | None]
OfLevel = Callable[[Level], float]
OfServer = Callable[[ServerResults], float | None]
MEGA = 1e6


@attrs.frozen
class Row:
    """One figure of each server, in each round."""

    figure: Figure
    of: OfTurn
    once: OfServer | None = None
    """Instead of that: what was measured once, before the rounds."""

    def by_round(self, server: ServerResults) -> dict[int, float]:
        found = (
            [(turn.round, self.of(turn)) for turn in server.turns] if self.once is None else [(0, self.once(server))]
        )
        return {round_: value for round_, value in found if value is not None}

    def spread(self, server: ServerResults) -> Spread | None:
        values = list(self.by_round(server).values())
        return Spread.of(values) if values else None

    def ratio(self, ours: ServerResults, theirs: ServerResults) -> Spread | None:
        """How many times better ours is, round by round: both had the same prompts then, one soon after the other."""
        own, other = self.by_round(ours), self.by_round(theirs)
        times = [self.figure.times_better(own[round_], other[round_]) for round_ in own if round_ in other]
        known = [one for one in times if one is not None]
        return Spread.of(known) if known else None


@attrs.frozen
class Section:
    """A table."""

    title: str
    head: str
    """Of the first column."""
    rows: Sequence[Row]
    plot: str = ""
    """The name of the plot that shows it."""


def at_level(concurrency: int, of: OfLevel) -> OfTurn:
    def of_turn(turn: Turn) -> float | None:
        level = next((level for level in turn.levels if level.concurrency == concurrency), None)
        return None if level is None or not level.ttft else of(level)

    return of_turn


def output_rate(level: Level) -> float:
    """Tokens per second, prefill and waiting included."""
    return level.output_tokens / level.seconds


def ttft_at(share: float) -> OfLevel:
    return lambda level: percentile(level.ttft, share)


def e2e_median(level: Level) -> float:
    return percentile(level.e2e, 0.5)


def cpu_per_thousand(level: Level) -> float:
    return 1e3 * level.cpu_seconds / level.output_tokens


def milliseconds(of: OfTurn) -> OfTurn:
    def of_turn(turn: Turn) -> float | None:
        seconds = of(turn)
        return None if seconds is None else 1e3 * seconds

    return of_turn


def level_rows(plan: PlanRecord, unit: str, more_is_better: bool, of: OfLevel) -> list[Row]:
    return [Row(Figure(str(n), unit, more_is_better), at_level(n, of)) for n in plan.concurrency]


def latency_rows(plan: PlanRecord, of: OfLevel) -> list[Row]:
    return [Row(Figure(str(n), "ms", False), milliseconds(at_level(n, of))) for n in plan.concurrency]


def sections(plan: PlanRecord) -> list[Section]:
    """In the order in which they are shown; those without any figure among them."""
    at_once = "requests at once"
    return [
        Section("Output, tok/s", at_once, level_rows(plan, "tok/s", True, output_rate), "throughput"),
        Section("First token, p50, ms", at_once, latency_rows(plan, ttft_at(0.5)), "first_token"),
        Section("First token, p95, ms", at_once, latency_rows(plan, ttft_at(0.95))),
        Section(
            "Between tokens, p50, ms",
            at_once,
            latency_rows(plan, lambda level: level.itl_p50),
            "between_tokens",
        ),
        Section("Between tokens, p95, ms", at_once, latency_rows(plan, lambda level: level.itl_p95)),
        Section("CPU seconds for 1,000 output tokens", at_once, level_rows(plan, "s", False, cpu_per_thousand)),
        Section("Long prompts", "", long_rows(plan)),
        Section("Start", "", start_rows(), "start"),
        Section("Memory of all processes (PSS), MB", "", memory_rows(), "memory"),
    ]


def at_a_glance(plan: PlanRecord) -> Section:
    """The few figures that most readers look for."""
    few, many = min(plan.concurrency), max(plan.concurrency)
    shown = {f"{n} at once": n for n in (few, many)}
    rates = [
        Row(Figure(f"output, {text}, tok/s", "tok/s", True), at_level(n, output_rate)) for text, n in shown.items()
    ]
    kinds: dict[str, OfLevel] = {"first token": ttft_at(0.95), "between tokens": lambda level: level.itl_p95}
    times = [
        Row(Figure(f"{kind}, {text}, p95, ms", "ms", False), milliseconds(at_level(n, of)))
        for kind, of in kinds.items()
        for text, n in shown.items()
    ]
    cpu = Row(Figure(f"CPU seconds for 1,000 tokens, {many} at once", "s", False), at_level(many, cpu_per_thousand))
    ready = Row(Figure("start to ready, s", "s", False), lambda turn: turn.ready_seconds)
    memory = Row(Figure("memory under load, MB", "MB", False), lambda turn: turn.memory_load / MEGA)
    return Section("At a glance", "", [*rates, *times, cpu, ready, memory])


def long_rows(plan: PlanRecord) -> list[Row]:
    long = f"first token of {plan.long_prompt_tokens:,} tokens, ms"
    return [
        Row(Figure(long, "ms", False), milliseconds(lambda turn: turn.ttft_long)),
        Row(Figure("… the same prompt again, ms", "ms", False), milliseconds(lambda turn: turn.ttft_again)),
        Row(
            Figure("streams beside long prompts, between tokens, p99, ms", "ms", False),
            milliseconds(lambda turn: turn.beside.itl_p99 if turn.beside else None),
        ),
        Row(
            Figure("… first token of these prompts, p50, ms", "ms", False),
            milliseconds(lambda turn: percentile(turn.beside.ttft, 0.5) if turn.beside else None),
        ),
    ]


def start_rows() -> list[Row]:
    def nothing(_: Turn) -> None:
        return None

    return [
        Row(Figure("start to ready, s", "s", False), lambda turn: turn.ready_seconds),
        Row(Figure("… its files not in memory, s", "s", False), nothing, lambda server: server.cold_start_seconds),
        Row(Figure("… without its own caches, s", "s", False), nothing, lambda server: server.first_start_seconds),
        Row(Figure("first request after a start, s", "s", False), lambda turn: turn.first_request_seconds),
    ]


def memory_rows() -> list[Row]:
    return [
        Row(Figure("ready, idle", "MB", False), lambda turn: turn.memory_idle / MEGA),
        Row(Figure("under load", "MB", False), lambda turn: turn.memory_load / MEGA),
    ]
