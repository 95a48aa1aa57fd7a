"""A listening Unix socket as a file: one server per file, nobody else's file is touched, and none is left behind.

Used by app/listening.py. The file's mode is 0600: who may open it may use the server, so this user alone. An operator
who wants others to come in, such as a proxy of another user, changes the mode or owner of the file once it is there.

Two servers that start at once would both find a dead server's file, and the later one would remove the other's new one.
So a lock on the file's name with ".lock" is held while it is looked at, replaced and listened on.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from protocol.errors import BadRequestError, StartError

MAX_PATH_BYTES = 107
"""What the kernel takes for a socket's name."""
_ONLY_OURS = 0o177


def check_socket_path(path: Path) -> None:
    """Raises BadRequestError."""
    size = len(os.fsencode(path))
    if size > MAX_PATH_BYTES:
        raise BadRequestError(f"--uds may have at most {MAX_PATH_BYTES} bytes, and has {size}: {path}")


@contextmanager
def open_unix_socket(path: Path, backlog: int) -> Iterator[socket.socket]:
    """Listening. Raises StartError if another server listens or starts there, or if the file is anything else than a
    socket."""
    with socket.socket(socket.AF_UNIX) as listener:
        with _locked(path):
            _remove_stale(path)
            ours = _listen(listener, path, backlog)
        try:
            yield listener
        finally:
            _remove_if_same(path, ours)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Nobody waits: of two servers that start at once one has come too late anyway. Raises StartError for that one."""
    name = path.with_name(f"{path.name}.lock")
    try:
        lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _cannot_listen(path, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Its holder removes it. Who opened it before that has locked a file that nobody else will find.
        if not os.path.samestat(os.fstat(lock), name.lstat()):
            raise BlockingIOError
    except (BlockingIOError, FileNotFoundError) as error:
        os.close(lock)
        raise StartError(f"cannot listen on {path}: another server is starting there") from error
    try:
        yield
    finally:
        name.unlink(missing_ok=True)  # before it is let go
        os.close(lock)


def _listen(listener: socket.socket, path: Path, backlog: int) -> os.stat_result:
    """What the new file is known by."""
    mask = os.umask(_ONLY_OURS)
    try:
        listener.bind(str(path))
    except OSError as error:
        raise _cannot_listen(path, error) from error
    finally:
        os.umask(mask)
    listener.setblocking(False)
    listener.listen(backlog)
    return path.lstat()


def _remove_stale(path: Path) -> None:
    """What a server that was killed has left."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise _cannot_listen(path, error) from error
    if not stat.S_ISSOCK(mode):
        raise StartError(f"cannot listen on {path}: it is there already and no socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # a full backlog is somebody's, too
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass
        except OSError as error:
            raise _cannot_listen(path, error) from error
    raise StartError(f"cannot listen on {path}: another server does")


def _remove_if_same(path: Path, ours: os.stat_result) -> None:
    """Unless another server has put its own there meanwhile."""
    with suppress(FileNotFoundError):
        if os.path.samestat(path.lstat(), ours):
            path.unlink()


def _cannot_listen(path: Path, error: OSError) -> StartError:
    return StartError(f"cannot listen on {path}: {error.strerror or error}")
