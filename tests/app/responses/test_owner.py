"""Which servers live: said by locks, also while others start and tidy up."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from app.responses.owner import Owner


@contextmanager
def owners(store: Path) -> Iterator[tuple[Owner, Owner]]:
    with closing(Owner(store)) as one, closing(Owner(store)) as other:
        yield one, other


def test_a_server_lives_until_it_is_closed(tmp_path: Path) -> None:
    with owners(tmp_path / "store") as (one, other):
        one.remove_dead()
        assert one.lives(other.name)
        assert other.lives(one.name)
    with closing(Owner(tmp_path / "store")) as later:
        assert not later.lives(one.name)


def test_a_file_is_removed_under_its_lock_so_that_no_server_that_starts_loses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = tmp_path / "store-owner-dead"
    dead.touch()
    unlink = Path.unlink

    def checked(file: Path, missing_ok: bool = False) -> None:
        with file.open() as starting, pytest.raises(BlockingIOError):
            fcntl.flock(starting, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unlink(file, missing_ok)

    with closing(Owner(tmp_path / "store")) as owner:
        monkeypatch.setattr(Path, "unlink", checked)
        owner.remove_dead()
        monkeypatch.undo()
    assert not dead.exists()
