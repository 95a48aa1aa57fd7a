"""scripts/bench kv counts right, says what is better, and moves real blocks between real processes."""

from __future__ import annotations

import json
import os

import msgspec
import pytest
import torch

from protocol.nixl_module import nixl_module
from scripts.benchmark.client import Address, Call
from scripts.benchmark.kv.command import kv
from scripts.benchmark.kv.copies import measure_copies
from scripts.benchmark.kv.lending_process import scattered
from scripts.benchmark.kv.mixed_load import Load, figures_alone, figures_beside
from scripts.benchmark.kv.offloading import FirstTokens, drop_from_memory, offloading_table
from scripts.benchmark.kv.rates import Rate, RateRow, rate_table, size_text
from scripts.benchmark.kv.transports import Amount
from scripts.gpu_checks.random_checkpoint import write_checkpoint
from scripts.gpu_checks.random_model import TINY


def call(sent_at: float, *texts_at: float, ended_at: float | None = None, cached: int = 0) -> Call:
    """That got its texts then."""
    text = msgspec.json.encode({"choices": [{"text": "a"}]})
    usage = msgspec.json.encode({"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": cached}}})
    events = [*((at, text) for at in texts_at), (texts_at[-1], usage)]
    return Call(Address("localhost", 1), "model", "prompt", len(texts_at), sent_at, events, ended_at)


def test_a_rate_is_of_the_least_disturbed_try_and_of_the_one_in_the_middle():
    assert Rate.of(10**9, [1.0, 0.5, 4.0]) == Rate(best=2.0, middle=1.0)


def test_ratios_of_rates_are_of_the_medians():
    row = RateRow("1 MB", {"memcpy": Rate(20.0, 10.0), "shm": Rate(8.0, 4.0)})
    head, line = rate_table("frames", [row], [("shm", "memcpy")]).splitlines()
    assert head.split() == ["frames", "memcpy", "shm", "shm", ":", "memcpy"]
    assert line.split() == ["1", "MB", "20", "(10)", "8", "(4)", "0.40×"]


def test_an_amount_is_of_whole_blocks_and_of_one_at_least():
    assert (Amount(360 << 10, 1 << 20).num_blocks, Amount(1 << 20, 1 << 16).num_blocks) == (2, 1)
    assert str(Amount(360 << 10, 1 << 20)) == "360 KiB × 2 = 0.737 MB"
    assert (size_text(1536 << 10), size_text(64 << 10)) == ("1.5 MiB", "64 KiB")


def test_scattered_frames_are_all_frames_in_the_same_order_each_time():
    assert sorted(scattered(100)) == list(range(100))
    assert scattered(100) == scattered(100) != list(range(100))


def test_of_a_load_there_is_each_figure_that_its_table_shows():
    streams = [call(0.0, 1.0, 2.0, 3.0, 5.0), call(0.0, 1.5, 2.5)]
    arriving = [call(2.0, 4.0, 4.5, 4.75, ended_at=4.75), call(3.0, 6.0, 6.5, 6.75, ended_at=6.75)]
    beside = figures_beside(streams, arriving, began=2.0, ended=6.75)
    alone = figures_alone([call(0.0, 1.0, 1.25), call(0.0, 3.0, 3.5), call(0.0, 2.0, 2.5)])

    assert set(alone | beside) == set(Load(2, 2, 1.0, 16, 3).figures())
    assert (alone["alone"], alone["alone_second"]) == (2000, 500)
    assert (beside["ttft_p50"], beside["ttft_p99"], beside["second"]) == (2000, 3000, 500)
    assert beside["own_p95"] == 250
    assert beside["output"] == pytest.approx(4 / 4.75)


def test_a_stream_that_stands_still_to_the_end_counts_as_long_as_it_stood():
    streams = [call(0.0, 1.0, 1.25, 1.5)]
    beside = figures_beside(streams, [call(1.0, 2.0, 9.0, 9.5, ended_at=9.5)], began=1.0, ended=9.5)
    assert (beside["gap_p50"], beside["gap_p99"]) == (250, 8000)


def test_a_prompt_without_an_answer_counts_with_as_long_as_it_has_waited():
    waiting = Call(Address("localhost", 1), "model", "prompt", 1, sent_at=3.0)
    beside = figures_beside([call(0.0, 1.0, 2.0)], [waiting], began=1.0, ended=9.5)
    assert beside["ttft_p50"] == 6500
    assert not {"second", "own_p50"} & set(beside)


def test_first_tokens_are_held_against_those_that_are_computed_with_a_connector():
    found = [
        FirstTokens("cold, without a connector", [90.0, 100.0, 110.0], [0, 0, 0]),
        FirstTokens("cold", [200.0], [0]),
        FirstTokens("in the pool", [10.0], [48]),
    ]
    _, without, cold, pool = offloading_table(found, 64).splitlines()
    assert without.split()[-5:] == ["100", "90", "110", "2.00×", "0%"]
    assert cold.split()[-2:] == ["1.00×", "0%"]
    assert pool.split()[-2:] == ["20.00×", "75%"]


def test_cached_tokens_are_those_that_the_server_tells():
    assert call(0.0, 1.0, cached=48).num_cached_tokens == 48


def test_files_are_as_they_were_after_they_were_dropped_from_memory(tmp_path):
    (tmp_path / "layout").mkdir()
    (tmp_path / "layout" / "blocks").write_bytes(b"a block")
    drop_from_memory(tmp_path)
    assert (tmp_path / "layout" / "blocks").read_bytes() == b"a block"


def test_what_is_no_size_is_refused(capsys):
    assert kv(parts=["transports"], tries=0) == 1
    assert "must be positive" in capsys.readouterr().err


@pytest.mark.process
def test_blocks_of_both_kinds_of_pool_are_copied(tmp_path):
    rows = measure_copies(write_checkpoint(tmp_path, TINY, torch.float32), [1 << 14], tries=1)
    assert [row.title.split(":")[0] for row in rows] == ["native", "torch"]
    assert all(rate.best > 0 for row in rows for rate in row.rates.values())


@pytest.mark.process
def test_each_transport_is_measured_between_two_processes(tmp_path, capsys):
    result, before = tmp_path / "result.json", set(os.listdir("/proc/self/fd"))

    assert kv(parts=["transports"], frame_kib=[4], mebibytes=[1], tries=1, output=result) == 0

    (row,) = json.loads(result.read_text())["from connector to connector"]
    transports = ["shm", "tcp", *(["nixl"] if nixl_module() else [])]
    assert set(row["rates"]) == {"memcpy", "socket", *transports, *(f"{name}, new frames" for name in transports)}
    assert "4 KiB × 256 = 1.05 MB" in capsys.readouterr().out
    assert len(os.listdir("/proc/self/fd")) == len(before)
