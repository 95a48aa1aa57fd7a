"""A comparison as plots: SVG files for pages, PNG files to look at. Needs matplotlib (the extra `bench`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D

from scripts.benchmark.compare.markdown import machine_line, model_folder
from scripts.benchmark.compare.plot_bars import draw_memory, draw_start
from scripts.benchmark.compare.plot_curves import (
    draw_between_p50,
    draw_between_p95,
    draw_first_p50,
    draw_first_p95,
    draw_latency_throughput,
    draw_throughput,
)
from scripts.benchmark.compare.plot_style import MUTED, SETTINGS, looks
from scripts.benchmark.compare.results import ModelResults, Results

Draw = Callable[[Axes, Results, ModelResults], None]
WIDTH = 7.6
"""Inches, of a plot with one panel."""
PANEL_HEIGHT = 4.2
FOOT = 0.48
"""Inches below the panels, for the small print."""
PLOTS: dict[str, Sequence[Draw]] = {
    "overview": (draw_throughput, draw_first_p95, draw_between_p95, draw_memory),
    "throughput": (draw_throughput,),
    "first_token": (draw_first_p50, draw_first_p95),
    "between_tokens": (draw_between_p50, draw_between_p95),
    "latency_throughput": (draw_latency_throughput,),
    "memory": (draw_memory,),
    "start": (draw_start,),
}
SHARED_SCALE = ("first_token", "between_tokens")
"""Plots whose panels are to be compared with one another."""


def draw_plots(results: Results, directory: Path, names: Sequence[str] = tuple(PLOTS)) -> Sequence[str]:
    """Writes these plots of each model, and returns their names."""
    settings: Any = SETTINGS  # annotated with every key there is
    with mpl.rc_context(settings):
        for model in results.models:
            folder = directory / model_folder(results, model)
            folder.mkdir(parents=True, exist_ok=True)
            for name in names:
                _draw(name, PLOTS[name], results, model, folder)
    return names


def _draw(name: str, draws: Sequence[Draw], results: Results, model: ModelResults, folder: Path) -> None:
    columns = min(len(draws), 2)
    rows = -(-len(draws) // columns)
    height = rows * PANEL_HEIGHT + FOOT
    canvas = Canvas(figsize=(WIDTH if columns == 1 else 1.5 * WIDTH, height), layout="constrained")
    panels = canvas.subplots(rows, columns, squeeze=False, sharey=name in SHARED_SCALE)
    for axes, draw in zip(panels.flat, draws, strict=True):
        draw(axes, results, model)
    if name in SHARED_SCALE:
        panels[0, 1].set_ylabel("")
    _legend(canvas, model)
    canvas.text(0.008, 0.008, small_print(results, model), fontsize=7.0, color=MUTED, va="bottom", linespacing=1.45)
    engine: Any = canvas.get_layout_engine()
    engine.set(rect=(0.0, FOOT / height, 1.0, 1.0 - FOOT / height - 0.34 / height), w_pad=0.12, h_pad=0.10, wspace=0.03)
    canvas.savefig(folder / f"{name}.svg", metadata={"Date": None})
    canvas.savefig(folder / f"{name}.png", dpi=110)


def _legend(canvas: Canvas, model: ModelResults) -> None:
    """One for all panels, in the order of the servers."""
    shown = looks([server.name for server in model.servers])
    marks = [
        Line2D([], [], color=look.colour, marker=look.marker, markersize=6, linewidth=2.2) for look in shown.values()
    ]
    canvas.legend(
        marks,
        list(shown),
        loc="upper right",
        ncols=len(shown),
        frameon=False,
        fontsize=9.5,
        handlelength=1.8,
        borderaxespad=0.4,
        columnspacing=1.6,
    )


def small_print(results: Results, model: ModelResults) -> str:
    """Two lines: the servers with their versions; machine, date, and what was asked."""
    plan, rounds = results.plan, max((len(server.turns) for server in model.servers), default=0)
    servers = ", ".join(f"{server.name} {server.version}" for server in model.servers)
    spread = f"median of {rounds} rounds, lowest to highest shaded" if rounds > 1 else "one round"
    asked = f"{plan.prompt_tokens} tokens in, {plan.output_tokens} out"
    return f"{model.name} · {servers}\n{machine_line(results)} · {asked} · {spread} · scripts/bench"
