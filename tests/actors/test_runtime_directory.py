from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.runtime_directory import MAX_SOCKET_PATH, open_runtime_directory
from protocol.errors import StartError


@pytest.fixture
def place(monkeypatch) -> Iterator[Path]:
    """The only candidate: a directory of the test's own, with a name short enough."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        monkeypatch.setattr("actors.runtime_directory.candidates", lambda: [Path(directory)])
        yield Path(directory)


def test_the_directory_is_ours_alone_and_gone_afterwards(place):
    with open_runtime_directory() as directory:
        assert directory.stat().st_mode & 0o777 == 0o700
        (directory / "socket").touch()

    assert list(place.iterdir()) == []


def test_two_runs_do_not_share_one(place):
    with open_runtime_directory() as first, open_runtime_directory() as second:
        assert first != second


def test_what_a_killed_run_left_is_removed_and_a_living_one_s_is_not(place):
    left, foreign = place / "trillm-1-abcdefgh", place / "trillm-notes"
    for directory in (left, foreign):
        directory.mkdir()
    (left / "lock").touch()
    with open_runtime_directory() as alive, open_runtime_directory():
        assert sorted(path for path in place.iterdir() if path.name.startswith("trillm-1-")) == []
        assert alive.exists()

    assert list(place.iterdir()) == [foreign]


def test_a_place_that_is_too_long_or_read_only_is_passed_over(monkeypatch, tmp_path):
    long = tmp_path / ("x" * 90)
    long.mkdir()
    good = Path(os.environ.get("XDG_RUNTIME_DIR", "/tmp"))
    monkeypatch.setattr("actors.runtime_directory.candidates", lambda: [long, Path("/proc"), good])
    with open_runtime_directory() as directory:
        assert directory.parent == good
        assert len(f"{directory}/engine-0.123.sock".encode()) <= MAX_SOCKET_PATH


def test_no_place_at_all_is_one_error_that_names_what_was_tried(monkeypatch, place):
    monkeypatch.setattr("actors.runtime_directory.candidates", lambda: [Path("/proc"), place / "missing"])
    with pytest.raises(StartError, match=r"/proc: .*; .*missing: No such file"), open_runtime_directory():
        pass
