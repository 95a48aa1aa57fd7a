"""Panels with bars for each server: memory and start."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from scripts.benchmark.compare.plot_style import INK, looks
from scripts.benchmark.compare.results import ModelResults, Results
from scripts.benchmark.compare.sections import Row, memory_rows, start_rows
from scripts.benchmark.report import number

START_LABELS = [
    "start\nto ready",
    "… its files\nnot in memory",
    "… without\nits caches",
    "first request\nafter a start",
]
GROUP = 0.78
"""Of the room for a row, that its bars take."""
THICKEST = 0.3
MEGA_TO_GIGA = 1e-3


def draw_memory(axes: Axes, results: Results, model: ModelResults) -> None:
    _bars(axes, model, memory_rows(), ["ready, idle", "under load"], MEGA_TO_GIGA)
    axes.set_title("Memory of all processes: lower is better")
    axes.set_xlabel("GB (PSS: what processes share counts once)")


def draw_start(axes: Axes, results: Results, model: ModelResults) -> None:
    _bars(axes, model, start_rows(), START_LABELS, 1.0)
    axes.set_title("Start: lower is better")
    axes.set_xlabel("seconds")


def _bars(axes: Axes, model: ModelResults, rows: Sequence[Row], labels: Sequence[str], scale: float) -> None:
    """A group of bars for each row, from top to bottom, one for each server; rows without figures are left out."""
    shown = looks([server.name for server in model.servers])
    bar = min(THICKEST, GROUP / len(model.servers))
    pairs = [
        (row, label)
        for row, label in zip(rows, labels, strict=True)
        if any(row.by_round(server) for server in model.servers)
    ]
    for group, (row, _) in enumerate(pairs):
        for place, server in enumerate(model.servers):
            if (spread := row.spread(server)) is None:
                continue
            middle, low, high = scale * spread.middle, scale * spread.low, scale * spread.high
            y = group + (place - (len(model.servers) - 1) / 2) * bar
            axes.barh(y, middle, height=0.86 * bar, color=shown[server.name].colour)
            if high > low:
                axes.plot([low, high], [y, y], color=INK, linewidth=1.1, marker="|", markersize=5)
            axes.annotate(
                number(middle), (high, y), xytext=(6, 0), textcoords="offset points", va="center", fontsize=9, color=INK
            )
    axes.set_yticks(range(len(pairs)), [label for _, label in pairs])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
