"""A listening Unix socket as a file: one server per file, nobody else's file is touched, and none is left behind.

Used by app/listening.py. The file's mode is 0600: who may open it may use the server, so this user alone. An operator
who wants others to come in, such as a proxy of another user, changes the mode or owner of the file once it is there.
"""

from __future__ import annotations

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
    """Listening. Raises StartError if another server listens there, or if the file is anything else than a socket."""
    _remove_stale(path)
    with socket.socket(socket.AF_UNIX) as listener:
        mask = os.umask(_ONLY_OURS)
        try:
            listener.bind(str(path))
        except OSError as error:
            raise StartError(f"cannot listen on {path}: {error.strerror or error}") from error
        finally:
            os.umask(mask)
        ours = path.stat()
        try:
            listener.setblocking(False)
            listener.listen(backlog)
            yield listener
        finally:
            _remove_if_same(path, ours)


def _remove_stale(path: Path) -> None:
    """What a server that was killed has left."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise StartError(f"cannot listen on {path}: {error.strerror or error}") from error
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
            raise StartError(f"cannot listen on {path}: {error.strerror or error}") from error
    raise StartError(f"cannot listen on {path}: another server does")


def _remove_if_same(path: Path, ours: os.stat_result) -> None:
    """Unless another server has put its own there meanwhile."""
    with suppress(FileNotFoundError):
        if os.path.samestat(path.lstat(), ours):
            path.unlink()
