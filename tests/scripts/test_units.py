"""The files for systemd: it finds no fault with them, and the service is shut in as far as its own comment says."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from app.notify import STOP_SECONDS
from app.settings import Settings

SCRIPTS = Path(__file__).parents[2] / "scripts"
UNIT = (SCRIPTS / "trillm.service").read_text()
SOCKET = (SCRIPTS / "trillm.socket").read_text()
STATED = re.compile(r"gives it an exposure of ([0-9.]+)")
WITH_GPU = 1.5
"""For devices."""

pytestmark = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """As they would be installed, on a machine that has no /opt/trillm."""
    (tmp_path / "trillm.service").write_text(UNIT.replace("/opt/trillm/.venv/bin/trillm", "/bin/true"))
    (tmp_path / "trillm.socket").write_text(SOCKET)
    return tmp_path


def analyze(*arguments: str | Path) -> str:
    """What it prints; it must succeed."""
    found = subprocess.run(["systemd-analyze", "--no-pager", *arguments], capture_output=True, text=True, timeout=20)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout + found.stderr


def exposure(unit: Path) -> float:
    return float(re.search(r"exposure level for \S+ ([0-9.]+)", analyze("security", "--offline=yes", unit))[1])


def with_gpu(units: Path) -> Path:
    place = units / "trillm.service.d"
    place.mkdir()
    shutil.copy(SCRIPTS / "deploy" / "gpu.conf", place)
    return units / "trillm.service"


def test_systemd_has_nothing_to_say_against_them(units: Path) -> None:
    assert analyze("verify", units / "trillm.service", units / "trillm.socket") == ""
    assert analyze("verify", with_gpu(units)) == ""


def test_the_service_can_reach_no_more_than_its_comment_says(units: Path) -> None:
    assert exposure(units / "trillm.service") <= float(STATED.search(UNIT)[1])
    assert exposure(with_gpu(units)) <= WITH_GPU


def test_systemd_waits_for_running_answers_and_for_what_stopping_takes() -> None:
    [waits] = re.findall(r"^TimeoutStopSec=(\d+)s$", UNIT, re.MULTILINE)
    assert float(waits) >= Settings().shutdown_timeout + STOP_SECONDS


def test_the_socket_listens_where_the_server_would_by_itself() -> None:
    settings = Settings()
    assert re.findall(r"^ListenStream=(.+)$", SOCKET, re.MULTILINE) == [f"{settings.host}:{settings.port}"]
    assert "Accept=" not in SOCKET, "the server takes its connections itself"


def test_one_engine_that_is_killed_for_memory_does_not_end_the_others() -> None:
    assert "OOMPolicy=continue" in UNIT.splitlines()
