"""Where connections come in, and what hypercorn is told about them. Used by app/launch.py before anything else of the
HTTP side is loaded: an address that is taken is found out before any process is started."""

from __future__ import annotations

import math

from hypercorn.config import Config, Sockets

from app.settings import Settings
from protocol.errors import StartError

KEEP_ALIVE_SECONDS = 120.0
"""Longer than the pools of usual clients and proxies keep an idle connection, so that it is they who close it."""
AFTER_DRAIN_SECONDS = 5.0
"""After the drain deadline, how long the terminal error frames may take to reach their clients."""


def hypercorn_config(settings: Settings) -> Config:
    """hypercorn's configuration: what of its defaults does not suit long streams is changed here."""
    config = Config()
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    config.bind = [f"{host}:{settings.port}"]
    config.root_path = settings.root_path
    config.keep_alive_timeout = KEEP_ALIVE_SECONDS
    config.graceful_timeout = settings.shutdown_timeout + AFTER_DRAIN_SECONDS
    config.shutdown_timeout = math.inf  # our own deadlines bound the stopping of the actors
    config.keep_alive_max_requests = 10_000_000
    config.backlog = 1024
    config.loglevel = "WARNING"
    config.errorlog = None
    return config


def address(sockets: Sockets) -> str:
    host, port, *_ = sockets.insecure_sockets[0].getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def listen(config: Config) -> Sockets:
    """Raises StartError."""
    try:
        sockets = config.create_sockets()
        for listener in sockets.insecure_sockets:
            listener.listen(config.backlog)
    except OSError as error:
        raise StartError(f"cannot listen on {config.bind[0]}: {error.strerror or error}") from error
    return sockets
