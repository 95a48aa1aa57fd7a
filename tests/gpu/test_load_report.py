"""What a loading thread says it is at, and how far it is."""

from __future__ import annotations

from pathlib import Path

from gpu.load_report import LoadReport, enter, part_of
from gpu.runner import open_runner
from protocol.ids import EngineIndex, Epoch
from protocol.phases import ALLOCATE, IMPORT, LOAD
from protocol.spec import EngineSpec
from tests.helpers.tiny_checkpoints import make_checkpoint


def test_a_part_of_the_whole_is_told_as_such_and_its_phases_as_they_are() -> None:
    progress: list[float] = []
    phases: list[str] = []
    report = part_of(LoadReport(progress.append, phases.append), lambda done: (1 + done) / 2)
    enter(report, LOAD)
    report(0.5)
    assert (progress, phases) == ([0.75], [LOAD])


def test_who_wants_no_phases_is_told_none() -> None:
    progress: list[float] = []
    report = part_of(progress.append, lambda done: done / 2)
    enter(report, LOAD)
    report(0.5)
    assert progress == [0.25]


def test_an_engine_loads_in_phases(tmp_path: Path) -> None:
    phases: list[str] = []
    make_checkpoint(tmp_path)
    spec = EngineSpec(
        *(EngineIndex(0), Epoch(1), "", {}, str(tmp_path)),
        device="cpu",
        dtype="float32",
        threads=1,
        num_gpu_blocks_override=8,
    )
    open_runner(spec, LoadReport(lambda _: None, phases.append)).close()
    assert phases == [IMPORT, LOAD, ALLOCATE]
