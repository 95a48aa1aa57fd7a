"""How fast bytes were moved, and the tables of that. Used by scripts/benchmark/kv."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import attrs

from scripts.benchmark.report import aligned, number


@attrs.frozen
class Rate:
    """GB/s over several tries: the least disturbed one, and the one in the middle."""

    best: float
    middle: float

    @classmethod
    def of(cls, num_bytes: int, seconds: Sequence[float]) -> Rate:
        return cls(num_bytes / min(seconds) / 1e9, num_bytes / median(seconds) / 1e9)

    def __str__(self) -> str:
        return f"{number(self.best)} ({number(self.middle)})"


@attrs.frozen
class RateRow:
    """The same bytes, moved in several ways."""

    title: str
    rates: Mapping[str, Rate]


def seconds_of(does: Callable[[], None]) -> float:
    began = time.perf_counter()
    does()
    return time.perf_counter() - began


def rate_table(head: str, rows: Sequence[RateRow], ratios: Sequence[tuple[str, str]]) -> str:
    """Best (median) of each way, and how many times as fast one is as the other by their medians."""
    ways = list(rows[0].rates)
    lines = [[head, *ways, *(f"{one} : {other}" for one, other in ratios)]]
    for row in rows:
        quotients = [f"{row.rates[one].middle / row.rates[other].middle:.2f}×" for one, other in ratios]
        lines.append([row.title, *(str(row.rates[way]) for way in ways), *quotients])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(aligned(line, widths) for line in lines)


def size_text(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.4g} MiB" if num_bytes >= 2**20 else f"{num_bytes / 2**10:.4g} KiB"
