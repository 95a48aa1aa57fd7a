"""Where connections come in, and what hypercorn is told about them. Used by app/proxy/serving.py, and by app/launch.py
before anything else of the HTTP side is loaded: an address that is taken, or a certificate that cannot be read, is
found out before any process is started."""

from __future__ import annotations

import errno
import logging
import math
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import final

from hypercorn.config import Config, Sockets

from app.activation import open_given_sockets, shown
from app.listening_settings import ListeningSettings, tls_files
from app.own_command import own_command
from app.tls import HANDSHAKE_SECONDS, server_context
from app.unix_socket import open_unix_socket
from protocol.errors import StartError

logger = logging.getLogger("trillm")

KEEP_ALIVE_SECONDS = 120.0
"""Longer than the pools of usual clients and proxies keep an idle connection, so that it is they who close it."""
AFTER_DRAIN_SECONDS = 5.0
"""After the drain deadline, how long the terminal error frames may take to reach their clients."""


@final
class ListeningConfig(Config):  # type: ignore[misc]
    """hypercorn's configuration with a TLS context that is ready made."""

    tls: ssl.SSLContext | None = None
    is_activated = False
    """The sockets are a service manager's. Who connects while we start waits there for what it asks to be possible,
    however long the server was away; else it is told at once that it is too early."""

    def create_ssl_context(self) -> ssl.SSLContext | None:
        return self.tls


def hypercorn_config(settings: ListeningSettings) -> ListeningConfig:
    """What of hypercorn's defaults does not suit long streams is changed here. Raises StartError for TLS files that
    cannot be used."""
    config = ListeningConfig()
    files = tls_files(settings)
    if files is not None:
        config.tls = server_context(files, http2=settings.http2)
    config.ssl_handshake_timeout = HANDSHAKE_SECONDS
    config.root_path = settings.root_path
    config.keep_alive_timeout = KEEP_ALIVE_SECONDS
    config.graceful_timeout = settings.shutdown_timeout + AFTER_DRAIN_SECONDS
    config.shutdown_timeout = math.inf  # our own deadlines bound the stopping of the actors
    config.keep_alive_max_requests = 10_000_000
    config.backlog = 1024
    config.loglevel = "WARNING"
    config.errorlog = None
    return config


@contextmanager
def open_sockets(settings: ListeningSettings, config: ListeningConfig, manager: Mapping[str, str]) -> Iterator[Sockets]:
    """Listening, until they are left. Sockets that the service manager has opened, as the variables in `manager` say
    (app/notify.py), go before --host, --port and --uds. Raises StartError."""
    with ExitStack() as stack:
        listeners = stack.enter_context(open_given_sockets(manager, has_key=bool(settings.api_key)))
        config.is_activated = bool(listeners)
        if listeners:
            where = ", ".join(shown(listener) for listener in listeners)
            logger.info("taking connections of the service manager's sockets (not --host, --port, --uds): %s", where)
        elif settings.uds is not None:
            listeners = [stack.enter_context(open_unix_socket(settings.uds, config.backlog))]
        else:
            listeners = [stack.enter_context(listen(settings.host, settings.port, config.backlog))]
        yield Sockets(listeners, [], []) if config.tls is not None else Sockets([], listeners, [])


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """Raises StartError."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.setblocking(False)
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        shown = f"[{host}]" if ":" in host else host
        hint = (
            f"; use another --port, or see by `{own_command('check')}` who listens there"
            if error.errno == errno.EADDRINUSE
            else ""
        )
        raise StartError(f"cannot listen on {shown}:{port}: {error.strerror or error}{hint}") from error
    return listener


def address(sockets: Sockets) -> str:
    """For people, of the first one: http://127.0.0.1:8000, https://[::]:8000, unix:/run/trillm.sock."""
    first, *_ = sockets.secure_sockets or sockets.insecure_sockets
    if first.family == socket.AF_UNIX:
        return shown(first)
    return f"{'https' if sockets.secure_sockets else 'http'}://{shown(first)}"
