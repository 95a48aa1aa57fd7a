"""Facts are read from this machine as they are."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import pytest

from app.checkup.machine import first_writable, look_around, place, refusals
from app.checkup.packages import installed_packages
from app.checkup.probing import probe
from app.checkup.processors import processors
from app.settings import Settings
from protocol.errors import StartError
from protocol.machine import ProbeAsked

CPUINFO = "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu avx2 avx512f\n"


def test_this_machine_can_be_looked_at(tmp_path: Path):
    machine = look_around(Settings(download_dir=tmp_path, port=0))
    assert machine.cache.trouble == machine.address.trouble == ""
    assert machine.refusals == ()
    assert 0 < machine.available_memory <= machine.total_memory
    assert machine.packages.number > 10
    assert machine.has_pidfd == hasattr(os, "pidfd_open")


def test_a_place_may_not_be_there_yet_and_nothing_is_left_in_it(tmp_path: Path):
    found = place(tmp_path / "a" / "b")
    assert (found.trouble, found.path) == ("", tmp_path / "a" / "b")
    assert found.free_bytes > 0
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    assert place(tmp_path / "file" / "below").trouble == f"{tmp_path / 'file'}: Not a directory"


def test_a_place_below_one_that_may_not_be_read_is_a_trouble_of_its_own(tmp_path: Path, monkeypatch):
    def refuses(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuses)
    assert place(tmp_path / "secret" / "x").trouble.endswith("Permission denied")


def test_sockets_lie_in_the_first_place_that_can_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("")
    unusable = tmp_path / "file" / "below"
    assert first_writable([unusable, tmp_path]).path == tmp_path
    assert first_writable([unusable, unusable]).trouble


def test_settings_that_no_server_starts_with_are_told(tmp_path: Path):
    (told,) = refusals(Settings(ssl_certfile=tmp_path / "none.pem"))
    assert "none.pem" in told
    assert list(refusals(Settings())) == []


@pytest.mark.parametrize(
    ("cpu_max", "quota"), [("max 100000\n", math.inf), ("150000 100000\n", 1.5), ("", math.inf), ("200000 100000", 2.0)]
)
def test_a_control_group_s_share_of_the_processors_is_read(cpu_max, quota):
    assert processors(CPUINFO, cpu_max).quota == quota


def test_processors_are_told_by_what_the_kernels_use():
    found = processors(CPUINFO, "")
    assert (found.model, found.instructions in ("avx512f", "")) == ("AMD EPYC", True)
    assert processors("", "").instructions == ""


def test_what_is_installed_here_is_as_required():
    assert installed_packages().wrong == ()


async def test_a_probe_that_does_not_answer_is_told_by_its_last_words():
    said = (sys.executable, "-c", "import sys; print('first', file=sys.stderr); sys.exit('no libcudart here')")
    with pytest.raises(StartError, match=r"^torch cannot be loaded: no libcudart here$"):
        await probe(ProbeAsked("/nowhere", None), said)
