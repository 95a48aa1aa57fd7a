"""The plots of scripts/bench: all are drawn, whatever figures there are, and alike for the same figures."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from scripts.benchmark.compare.plot_style import KNOWN, looks
from scripts.benchmark.compare.results import ModelResults, ServerResults, write_results
from tests.scripts.comparisons import a_comparison

pytest.importorskip("matplotlib")

from scripts.benchmark.compare.command import report
from scripts.benchmark.compare.plots import PLOTS, draw_plots, small_print


def test_a_server_looks_the_same_in_every_company():
    assert looks(["trillm", "vLLM"])["vLLM"] == looks(["vLLM"])["vLLM"] == KNOWN["vLLM"]
    several = looks(["a", "b", "c", "d", "trillm"])
    assert len({look.colour for look in several.values()}) == 5


def test_a_report_of_saved_results_has_the_table_and_every_plot_in_it(tmp_path, capsys):
    write_results(a_comparison(), tmp_path / "results.json")
    assert report(tmp_path / "results.json", out=tmp_path / "again") == 0
    assert "trillm : llama.cpp" in capsys.readouterr().out
    text = (tmp_path / "again" / "results.md").read_text()
    for name in PLOTS:
        assert f"({name}.svg)" in text
        assert ElementTree.parse(tmp_path / "again" / f"{name}.svg").getroot().tag.endswith("svg")
        assert (tmp_path / "again" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_names_are_not_taken_for_formulas(tmp_path):
    results = a_comparison()
    results.models[0].name = results.models[0].servers[0].name = "$a_{b$ % \\ |"
    assert draw_plots(results, tmp_path, ["throughput", "memory"])


def test_the_same_figures_give_the_same_bytes(tmp_path):
    for name in ("one", "other"):
        draw_plots(a_comparison(), tmp_path / name, ["throughput"])
    assert (tmp_path / "one" / "throughput.svg").read_bytes() == (tmp_path / "other" / "throughput.svg").read_bytes()


def test_servers_and_levels_without_figures_leave_no_trace_and_no_error(tmp_path):
    results = a_comparison()
    servers = results.models[0].servers
    servers[2].turns, servers[2].first_start_seconds = [], None
    servers[1].turns = servers[1].turns[:1]
    results.models.append(ModelResults("Other/Model", [ServerResults("trillm", "1", "", [], {}, servers[0].turns)]))
    draw_plots(results, tmp_path, ["latency_throughput", "memory", "start"])
    assert (tmp_path / "Other-Model" / "memory.svg").is_file()


def test_the_small_print_says_who_what_where_and_when():
    results = a_comparison()
    told = small_print(results, results.models[0])
    for part in ("Small-135M", "llama.cpp 1.2.3", "A Processor, 2 cores, 24 GiB, 2026-11-30", "median of 3 rounds"):
        assert part in told
