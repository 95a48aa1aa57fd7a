"""Whether a server could listen where it is to. Used by app/checkup/machine.py."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

import attrs

from app.listening import listen
from app.settings import Settings
from protocol.errors import StartError
from protocol.net_address import netloc

TRIED_PORTS = 20
"""Above one that is taken."""


@attrs.frozen
class Address:
    name: str
    """For people."""
    trouble: str = ""
    """Why nobody could listen there; "" if one could."""
    is_taken: bool = False
    """Somebody listens there."""
    free_port: int | None = None
    """The next one that is free, if the one that was asked for is taken."""


def find_address(settings: Settings) -> Address:
    """Listens there for a moment, or asks whether somebody does. Nothing is left behind."""
    if settings.uds is not None:
        return _unix_address(settings.uds)
    name = netloc(settings.host, settings.port)
    error = _refusal(settings.host, settings.port)
    if error is None:
        return Address(name)
    if error.errno != errno.EADDRINUSE:
        return Address(name, error.strerror or str(error))
    above = range(settings.port + 1, min(settings.port + 1 + TRIED_PORTS, 65536))
    free = next((port for port in above if _refusal(settings.host, port) is None), None)
    return Address(name, os.strerror(errno.EADDRINUSE), is_taken=True, free_port=free)


def _refusal(host: str, port: int) -> OSError | None:
    try:
        listen(host, port, 1).close()
    except StartError as error:
        return error.__cause__ if isinstance(error.__cause__, OSError) else OSError(error.message)
    return None


def _unix_address(path: Path) -> Address:
    """As app/unix_socket.py would find it."""
    parent = path.absolute().parent
    if not os.access(parent, os.W_OK | os.X_OK):
        return Address(str(path), f"{parent} cannot be written to")
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return Address(str(path), "it is there already and no socket")
        with socket.socket(socket.AF_UNIX) as asking:
            asking.setblocking(False)
            asking.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):  # of a server that was killed: the next one takes it away
        return Address(str(path))
    except BlockingIOError:
        pass  # a full backlog is somebody's, too
    except OSError as error:
        return Address(str(path), error.strerror or str(error))
    return Address(str(path), os.strerror(errno.EADDRINUSE), is_taken=True)
