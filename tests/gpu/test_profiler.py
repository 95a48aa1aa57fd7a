"""Profiles begin and end when they are told to, and none goes on for ever."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch

from gpu.profiler import Profiler
from gpu.step_recording import StepRecording
from gpu.torch_recording import TorchRecording
from protocol.errors import ConflictError


class Kept:
    """A recording that writes the names of its spans."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def span(self, name: str) -> AbstractContextManager[object]:
        self.names.append(name)
        return nullcontext()

    def end(self, path: Path) -> None:
        path.write_text(" ".join(self.names))


def run_steps(profiler: Profiler, count: int) -> None:
    for number in range(count):
        with profiler.span(f"s{number}"):
            pass
        profiler.end_step()


def test_only_what_lies_between_start_and_stop_is_recorded(tmp_path):
    profiler = Profiler(Kept)
    run_steps(profiler, 2)
    profiler.start(tmp_path / "a")
    run_steps(profiler, 3)
    assert profiler.stop().num_steps == 3
    run_steps(profiler, 2)
    assert (tmp_path / "a").read_text() == "s0 s1 s2"
    assert not profiler.is_recording


@pytest.mark.parametrize("limits", [{"max_steps": 4}, {"max_seconds": 4.0}])
def test_one_that_nobody_stops_ends_by_itself_and_is_still_told_of(limits, tmp_path, caplog):
    ticks = iter(range(100))
    profiler = Profiler(Kept, clock=lambda: float(next(ticks)), **limits)
    profiler.start(tmp_path / "a")
    run_steps(profiler, 10)
    assert (tmp_path / "a").read_text() == "s0 s1 s2 s3"
    assert "4 steps are in" in caplog.text
    state = profiler.stop()
    assert (state.path, state.num_steps, state.is_cut_off) == (str(tmp_path / "a"), 4, True)
    with pytest.raises(ConflictError):
        profiler.stop()


def test_a_new_one_may_begin_after_one_that_ended_by_itself(tmp_path):
    profiler = Profiler(Kept, max_steps=1)
    profiler.start(tmp_path / "a")
    run_steps(profiler, 1)
    profiler.start(tmp_path / "b")
    assert profiler.stop().path == str(tmp_path / "b")


def test_a_place_that_cannot_be_written_is_refused_and_harms_no_step(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    profiler = Profiler(Kept, max_steps=1)
    with pytest.raises(ConflictError, match="cannot be written"):
        profiler.start(tmp_path / "file" / "a")
    (tmp_path / "directory").mkdir()
    profiler.start(tmp_path / "directory")
    run_steps(profiler, 1)
    assert "cannot be written" in caplog.text
    profiler.start(tmp_path / "directory")
    with pytest.raises(ConflictError, match="cannot be written"):
        profiler.stop()


@pytest.mark.parametrize("kind", ["steps", "torch"])
def test_the_file_is_in_chromes_format(kind, tmp_path):
    device = torch.device("cpu")
    profiler = Profiler(StepRecording if kind == "steps" else lambda: TorchRecording(device))
    profiler.start(tmp_path / "a.json")
    with profiler.span("outer"):
        torch.ones(3) + 1
    profiler.end_step()
    profiler.stop()
    events = json.loads((tmp_path / "a.json").read_bytes())["traceEvents"]
    [outer] = [event for event in events if event.get("name") == "outer" and event.get("ph") == "X"]
    assert outer["dur"] >= 0
    assert any(event.get("name") == "aten::add" for event in events) == (kind == "torch")
