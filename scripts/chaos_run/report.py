"""A run's result as tables for people (in Markdown, as ARCHITECTURE.md has them) and as JSON for everything else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

import attrs

from scripts.chaos_run.client import Outcome
from scripts.chaos_run.injector import Injected
from scripts.chaos_run.run import Result

BEFORE_SECONDS, AFTERWARDS_SECONDS = 0.5, 1.0
"""How soon around an injection a pause begins (with the last event before it) that is put down to it."""
FIRST_FAILURES = 10


@attrs.frozen
class Line:
    """What one kind of injection did to the clients."""

    injected: str
    times: int
    streams_hit: int
    """Requests under way at the moment, streamed or not, that were meant to be read to their end."""
    pause_median: float
    pause_max: float
    """Seconds, of the streamed ones that read as fast as they can. Below 0.2 s counts as 0."""
    differing: int
    failed: int


def lines(result: Result) -> list[Line]:
    kinds = list(dict.fromkeys(one.injection.kind.name for one in result.injected))
    return [line(kind, result) for kind in kinds]


def line(kind: str, result: Result) -> Line:
    done = [one for one in result.injected if one.injection.kind.name == kind and one.victims]
    hit = [(one, outcome) for one in done for outcome in result.outcomes if is_hit(outcome, one)]
    pauses = [
        outcome.pause(one.at - BEFORE_SECONDS, one.at + AFTERWARDS_SECONDS)
        for one, outcome in hit
        if outcome.manner == "reads" and outcome.ask.endswith("streamed")
    ]
    return Line(
        kind,
        len(done),
        len(hit),
        median(pauses) if pauses else 0.0,
        max(pauses, default=0.0),
        sum(outcome.verdict == "differs" for _, outcome in hit),
        sum(outcome.verdict == "failed" for _, outcome in hit),
    )


def is_hit(outcome: Outcome, injected: Injected) -> bool:
    return outcome.manner in ("reads", "dawdles") and outcome.hit_by(injected.at)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    table = [header, ["---" if index == 0 else "--:" for index in range(len(header))], *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in table)


def table(result: Result) -> str:
    header = ["injected", "times", "requests under way", "pause, median", "longest", "differing", "failed"]
    rows = [
        [
            *(row.injected, str(row.times), str(row.streams_hit)),
            *(f"{row.pause_median:.1f} s", f"{row.pause_max:.1f} s", str(row.differing), str(row.failed)),
        ]
        for row in lines(result)
    ]
    return markdown(header, rows)


def summary(result: Result) -> str:
    verdicts = Counter(outcome.verdict for outcome in result.outcomes)
    grown = [
        f"{name} {(now.rss_bytes - result.before[name].rss_bytes) / 2**20:+.0f} MiB, "
        f"{now.descriptors - result.before[name].descriptors:+d} descriptors"
        for name, now in result.after.items()
        if name in result.before
    ]
    return (
        f"{len(result.outcomes)} requests: {verdicts['equal']} equal to the undisturbed answers, {verdicts['differs']} "
        f"different, {verdicts['failed']} failed, {verdicts['left']} left early by their clients; "
        f"{sum(outcome.refusals for outcome in result.outcomes)} times a client was told 503 and came again.\n"
        f"Afterwards, beside before: {'; '.join(grown)}."
    )


def as_record(result: Result) -> dict[str, Any]:
    return {
        "course": attrs.asdict(result.course),
        "restart_seconds": result.restart_seconds,
        "table": [attrs.asdict(row) for row in lines(result)],
        "requests": dict(Counter(outcome.verdict for outcome in result.outcomes)),
        "refusals": sum(outcome.refusals for outcome in result.outcomes),
        "before": {name: attrs.asdict(held) for name, held in result.before.items()},
        "after": {name: attrs.asdict(held) for name, held in result.after.items()},
        "injected": [
            {"kind": one.injection.kind.name, "seconds": one.until - one.at, "at": one.at, "victims": one.victims}
            for one in result.injected
        ],
        "complaints": result.complaints,
        "failures": [attrs.asdict(outcome) for outcome in result.outcomes if outcome.verdict in ("differs", "failed")][
            :FIRST_FAILURES
        ],
    }
