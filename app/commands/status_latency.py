"""Medians out of the histograms that a house tells. Pure; used by app/commands/status_view.py."""

from __future__ import annotations

from collections.abc import Sequence

from app.house import HouseHistogram, HouseLatency

LEAST_SAMPLES = 5
"""Of fewer, where they lie within a bucket is a guess."""


def medians(now: HouseLatency, before: HouseLatency | None) -> list[tuple[str, float]]:
    """Of what was measured between two readings, or since the server began: name and seconds; nothing of what was
    measured less than five times meanwhile."""
    named = (
        ("first token", now.ttft, None if before is None else before.ttft),
        ("between tokens", now.itl, None if before is None else before.itl),
        ("answer", now.e2e, None if before is None else before.e2e),
    )
    found = []
    for name, new, old in named:
        counts = between(new, old)
        if sum(counts) >= LEAST_SAMPLES and (seconds := quantile(new.bounds, counts, 0.5)) is not None:
            found.append((name, seconds))
    return found


def between(new: HouseHistogram, old: HouseHistogram | None) -> list[int]:
    """Counts of each bucket. One that has begun anew counts from its beginning."""
    if old is None or old.bounds != new.bounds or any(a < b for a, b in zip(new.counts, old.counts, strict=True)):
        return list(new.counts)
    return [a - b for a, b in zip(new.counts, old.counts, strict=True)]


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """Taken as spread evenly within its bucket; above all bounds, the highest of them. None if nothing was counted."""
    wanted = share * sum(counts)
    if not wanted or not bounds:
        return None
    below, least = 0, 0.0
    for bound, number in zip(bounds, counts, strict=False):
        if below + number >= wanted:
            return least + (bound - least) * (wanted - below) / number
        below, least = below + number, bound
    return bounds[-1]


def shown(seconds: float) -> str:
    """With the digits that mean something."""
    if seconds < 0.0995:
        return f"{1000 * seconds:.2g} ms"
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
