"""What is left behind by who was killed is taken away by the next, and nothing that somebody works in."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpu.kernels.scratch import PREFIX, open_scratch

KILLED = """
import os, signal, sys
from pathlib import Path
from gpu.kernels.scratch import open_scratch
with open_scratch(Path(sys.argv[1])) as scratch:
    (scratch / "weights").write_bytes(b"many")
    print(scratch.name, flush=True)
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGALRM)
"""


def names(parent: Path) -> list[str]:
    return sorted(path.name for path in parent.iterdir())


def test_it_is_gone_afterwards_however_it_is_left(tmp_path: Path) -> None:
    with open_scratch(tmp_path) as scratch:
        (scratch / "file").touch()
        assert names(tmp_path) == [scratch.name]
    with pytest.raises(ValueError), open_scratch(tmp_path):
        raise ValueError
    assert names(tmp_path) == []


def test_two_at_once_keep_theirs(tmp_path: Path) -> None:
    with open_scratch(tmp_path) as first, open_scratch(tmp_path) as second:
        assert names(tmp_path) == sorted((first.name, second.name))


def test_what_a_killed_process_has_left_goes_with_the_next_and_not_before(tmp_path: Path) -> None:
    (tmp_path / "whole").touch()
    child = subprocess.Popen([sys.executable, "-c", KILLED, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    left = child.stdout.readline().decode().strip()
    with open_scratch(tmp_path):
        assert left in names(tmp_path), "it is worked in"
    child.communicate(b"\n")
    assert child.returncode == -signal.SIGALRM
    assert names(tmp_path) == sorted((left, "whole"))
    with open_scratch(tmp_path) as scratch:
        assert names(tmp_path) == sorted((scratch.name, "whole"))


def test_where_it_leads_elsewhere_nothing_is_taken_away(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    (there / "mine").touch()
    (here / f"{PREFIX}link").symlink_to(there)
    with open_scratch(here):
        pass
    assert names(there) == ["mine"]
