"""Where connections come in, and what hypercorn is told about them. Used by app/proxy/serving.py, and by app/launch.py
before anything else of the HTTP side is loaded: an address that is taken, or a certificate that cannot be read, is
found out before any process is started."""

from __future__ import annotations

import math
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import final

from hypercorn.config import Config, Sockets

from app.listening_settings import ListeningSettings, tls_files
from app.tls import HANDSHAKE_SECONDS, server_context
from app.unix_socket import open_unix_socket
from protocol.errors import StartError

KEEP_ALIVE_SECONDS = 120.0
"""Longer than the pools of usual clients and proxies keep an idle connection, so that it is they who close it."""
AFTER_DRAIN_SECONDS = 5.0
"""After the drain deadline, how long the terminal error frames may take to reach their clients."""


@final
class ListeningConfig(Config):  # type: ignore[misc]
    """hypercorn's configuration with a TLS context that is ready made."""

    tls: ssl.SSLContext | None = None

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
def open_sockets(settings: ListeningSettings, config: ListeningConfig) -> Iterator[Sockets]:
    """Listening, until they are left. Raises StartError."""
    with ExitStack() as stack:
        if settings.uds is not None:
            listener = stack.enter_context(open_unix_socket(settings.uds, config.backlog))
        else:
            listener = stack.enter_context(listen(settings.host, settings.port, config.backlog))
        secure, insecure = ([listener], []) if config.tls is not None else ([], [listener])
        yield Sockets(secure, insecure, [])


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
        raise StartError(f"cannot listen on {shown}:{port}: {error.strerror or error}") from error
    return listener


def address(sockets: Sockets) -> str:
    """For people: http://127.0.0.1:8000, https://[::]:8000, unix:/run/trillm.sock."""
    [listener] = sockets.secure_sockets or sockets.insecure_sockets
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port, *_ = listener.getsockname()
    scheme = "https" if sockets.secure_sockets else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
