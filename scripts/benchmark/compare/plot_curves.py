"""Panels with a curve for each server over the number of requests at once, and of latency over throughput."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from scripts.benchmark.compare.plot_style import BAND_OPACITY, Look, looks
from scripts.benchmark.compare.results import ModelResults, Results
from scripts.benchmark.compare.sections import (
    OfLevel,
    Row,
    at_level,
    e2e_median,
    output_rate,
    ttft_at,
)
from scripts.benchmark.figure import Figure
from scripts.benchmark.statistics import Spread

LINE_WIDTH = 2.2
MARKER_SIZE = 5.5


def draw_throughput(axes: Axes, results: Results, model: ModelResults) -> None:
    _curves(axes, results, model, output_rate)
    axes.set_ylim(bottom=0)
    axes.set_title("Output: higher is better")
    axes.set_ylabel("output tokens per second, all requests")


def draw_first_p50(axes: Axes, results: Results, model: ModelResults) -> None:
    _latency(axes, results, model, ttft_at(0.5))
    axes.set_title("First token, median: lower is better")
    axes.set_ylabel("time from request to first text")


def draw_first_p95(axes: Axes, results: Results, model: ModelResults) -> None:
    _latency(axes, results, model, ttft_at(0.95))
    axes.set_title("First token, 95th percentile: lower is better")
    axes.set_ylabel("time from request to first text")


def draw_between_p50(axes: Axes, results: Results, model: ModelResults) -> None:
    _latency(axes, results, model, lambda level: level.itl_p50)
    axes.set_title("Between tokens, median: lower is better")
    axes.set_ylabel("time from one text to the next")


def draw_between_p95(axes: Axes, results: Results, model: ModelResults) -> None:
    _latency(axes, results, model, lambda level: level.itl_p95)
    axes.set_title("Between tokens, 95th percentile: lower is better")
    axes.set_ylabel("time from one text to the next")


def draw_latency_throughput(axes: Axes, results: Results, model: ModelResults) -> None:
    """Down and to the right is better."""
    for name, look, points in _points(results, model, output_rate):
        times = dict(_spreads(model, name, results, e2e_median))
        xs, ys = [rate.middle for _, rate in points], [times[n].middle for n, _ in points]
        axes.plot(xs, ys, color=look.colour, marker=look.marker, linewidth=LINE_WIDTH, markersize=MARKER_SIZE)
        for (n, _), x, y in zip(points, xs, ys, strict=True):
            axes.annotate(str(n), (x, y), xytext=(6, -11), textcoords="offset points", fontsize=8.5, color=look.colour)
    axes.set_xlim(left=0)
    _seconds_axis(axes)
    axes.set_title("A request's time against throughput: right and down is better")
    axes.set_xlabel("output tokens per second, all requests (at the points: requests at once)")
    axes.set_ylabel(f"time of a request with {results.plan.output_tokens} tokens, median")


def _latency(axes: Axes, results: Results, model: ModelResults, of: OfLevel) -> None:
    _curves(axes, results, model, of)
    _seconds_axis(axes)


def _seconds_axis(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:g} s" if value >= 1 else f"{1e3 * value:g} ms")
    )
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_minor_locator(NullLocator())


def _curves(axes: Axes, results: Results, model: ModelResults, of: OfLevel) -> None:
    for _, look, points in _points(results, model, of):
        at = [n for n, _ in points]
        low, high = [spread.low for _, spread in points], [spread.high for _, spread in points]
        axes.fill_between(at, low, high, color=look.colour, alpha=BAND_OPACITY, linewidth=0)
        middle = [spread.middle for _, spread in points]
        axes.plot(at, middle, color=look.colour, marker=look.marker, linewidth=LINE_WIDTH, markersize=MARKER_SIZE)
    axes.set_xscale("log", base=2)
    axes.set_xticks(results.plan.concurrency, [str(n) for n in results.plan.concurrency])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("requests at once")


def _points(results: Results, model: ModelResults, of: OfLevel) -> Iterator[tuple[str, Look, list[tuple[int, Spread]]]]:
    shown = looks([server.name for server in model.servers])
    # The first server's curve lies on top.
    for server in reversed(model.servers):
        if points := list(_spreads(model, server.name, results, of)):
            yield server.name, shown[server.name], points


def _spreads(model: ModelResults, name: str, results: Results, of: OfLevel) -> Iterator[tuple[int, Spread]]:
    server = next(server for server in model.servers if server.name == name)
    for n in results.plan.concurrency:
        row = Row(Figure(str(n), "", True), at_level(n, of))
        if (spread := row.spread(server)) is not None:
            yield n, spread
