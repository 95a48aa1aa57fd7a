"""A socket file is its server's: replaced when that is dead, left alone while it lives, and gone when it ends."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from app.settings import Settings
from app.unix_socket import MAX_PATH_BYTES, open_unix_socket
from protocol.errors import BadRequestError, StartError


def can_connect(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        return True


def leave_stale(path: Path) -> None:
    """As a server that was killed does."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()


def test_it_is_open_to_this_user_alone_and_gone_afterwards(tmp_path: Path) -> None:
    path, before = tmp_path / "s", os.umask(0)
    try:
        with open_unix_socket(path, 1):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert can_connect(path)
        assert os.umask(0) == 0, "the mask is as it was"
    finally:
        os.umask(before)
    assert not path.exists()


def test_what_a_dead_server_has_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    leave_stale(path)
    assert path.exists()
    with open_unix_socket(path, 1):
        assert can_connect(path)


def test_of_servers_that_start_at_once_on_a_dead_one_s_file_one_listens_and_keeps_it(tmp_path: Path) -> None:
    path, count = tmp_path / "s", 8
    at_once, opened = Barrier(count, timeout=10), Barrier(count, timeout=10)

    def start() -> str:
        at_once.wait()
        try:
            with open_unix_socket(path, 16):
                opened.wait()
                return "listens" if can_connect(path) else "lost its file"
        except StartError as error:
            opened.wait()
            return error.message

    with ThreadPoolExecutor(count) as pool:
        for _ in range(20):
            leave_stale(path)
            told = [start.result(timeout=20) for start in [pool.submit(start) for _ in range(count)]]
            assert told.count("listens") == 1
            assert all("another server" in each for each in told if each != "listens")
            assert list(tmp_path.iterdir()) == []


def test_who_comes_while_another_one_starts_is_refused_and_removes_nothing(tmp_path: Path) -> None:
    path, lock = tmp_path / "s", tmp_path / "s.lock"
    leave_stale(path)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StartError, match="another server is starting there"), open_unix_socket(path, 1):
            pass
        assert path.exists()
        assert lock.exists()
    with open_unix_socket(path, 1):  # a lock file that nobody holds is what a killed server has left
        assert can_connect(path)
        assert not lock.exists()


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "s.lock").symlink_to(elsewhere)
    with pytest.raises(StartError, match="cannot listen on"), open_unix_socket(tmp_path / "s", 1):
        pass
    assert not elsewhere.exists()


@pytest.mark.parametrize("num_waiting", [0, 3])
def test_a_live_server_s_is_refused_and_left_alone(tmp_path: Path, num_waiting: int) -> None:
    path = tmp_path / "s"
    waiting = [socket.socket(socket.AF_UNIX) for _ in range(num_waiting)]  # more than its backlog takes
    with open_unix_socket(path, 1):
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(str(path))
        with pytest.raises(StartError, match="another server does"), open_unix_socket(path, 1):
            pass
        assert path.exists()
    for client in waiting:
        client.close()


def test_what_is_no_socket_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("mine")
    with pytest.raises(StartError, match="it is there already and no socket"), open_unix_socket(path, 1):
        pass
    assert path.read_text() == "mine"
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(StartError, match="no socket"), open_unix_socket(link, 1):
        pass


def test_another_server_s_file_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as other:
        with open_unix_socket(path, 1):
            path.unlink()
            other.bind(str(path))
        assert path.exists()


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "s"
    with pytest.raises(StartError, match=f"cannot listen on {path}: No such file"), open_unix_socket(path, 1):
        pass


def test_a_name_that_is_too_long_is_refused_with_both_numbers() -> None:
    with pytest.raises(BadRequestError) as caught:
        Settings(uds=Path("/" + "ü" * 60))
    assert f"at most {MAX_PATH_BYTES} bytes, and has 121" in caught.value.message
    assert Settings(uds=Path("/" + "u" * 106)).uds is not None


def test_it_needs_no_key_whatever_the_host_would_be() -> None:
    assert Settings(uds=Path("/run/s"), host="0.0.0.0").api_key == ()
