"""Figures of several servers as a table with ratios, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scripts.benchmark.figure import Figure
from scripts.benchmark.statistics import Spread


def table(figures: Mapping[str, Figure], rounds: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """One row per figure: the median of each server with its spread, and how many times better the first server is
    than each other one (above 1: better)."""
    names = list(rounds)
    header = ["", "unit", *names, *(f"{names[0]} : {peer}" for peer in names[1:])]
    rows = [header]
    for key, figure in figures.items():
        spreads = {name: spread_of(key, rounds[name]) for name in names}
        ratios = [ratio(figure, spreads[names[0]], spreads[peer]) for peer in names[1:]]
        rows.append([figure.title, figure.unit, *(text_of(spreads[name]) for name in names), *ratios])
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    return "\n".join(aligned(row, widths) for row in rows)


def spread_of(key: str, rounds: Sequence[Mapping[str, float]]) -> Spread | None:
    values = [figures[key] for figures in rounds if key in figures]
    return Spread.of(values) if values else None


def ratio(figure: Figure, ours: Spread | None, theirs: Spread | None) -> str:
    times = None if ours is None or theirs is None else figure.times_better(ours.middle, theirs.middle)
    return "–" if times is None else f"{times:.2f}×"


def text_of(spread: Spread | None) -> str:
    if spread is None:
        return "–"
    middle = number(spread.middle)
    return middle if spread.low == spread.high else f"{middle} ({number(spread.low)}–{number(spread.high)})"


def number(value: float) -> str:
    """Three digits at least."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (
        cell.ljust(width) if column < 2 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join([first, *rest]).rstrip()
