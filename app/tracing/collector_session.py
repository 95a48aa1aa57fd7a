"""How the exporter asks a collector over HTTP, and what it takes for an answer: its head, within the deadline.

The exporter's own way (requests) reads whatever the answer has for a body, unpacked, waits as long as something comes
now and then, and takes a redirection for success. Used by app/tracing/otel.py.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPResponse, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection

from app.tracing.endpoint import shown

MAX_BODY = 65536
"""Nobody reads it; what is longer costs the connection, and what is not longer lets it be used again."""


class CollectorSession(requests.Session):
    """Of one thread at a time."""

    def __init__(self) -> None:
        super().__init__()
        for scheme in ("http://", "https://"):
            self.mount(scheme, _PatientOnce())

    def request(self, method: str, url: str | bytes, *args: Any, **options: Any) -> requests.Response:  # noqa: ANN401
        """Raises requests.RequestException, also for a redirection: nobody has taken what was sent."""
        options["stream"] = True
        with super().request(method, url, *args, **options) as response:
            # Once: as much as has come with the head, or comes next. The rest goes with the connection.
            response.raw.read1(MAX_BODY, decode_content=False)
        if HTTPStatus.MULTIPLE_CHOICES <= response.status_code < HTTPStatus.BAD_REQUEST:
            where = shown(response.headers.get("location", ""))[:100] or "no place"
            raise requests.RequestException(f"HTTP {response.status_code} names {where} as where they should be sent")
        return response


class _PatientOnce(HTTPAdapter):
    """Its timeout is for the whole head of an answer, and not for each piece."""

    def init_poolmanager(self, *args: Any, **options: Any) -> None:  # noqa: ANN401
        super().init_poolmanager(*args, **options)
        self.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}


class _Connection(HTTPConnection):
    def getresponse(self) -> HTTPResponse:  # type: ignore[override]  # as urllib3 has it
        return _within(self, super().getresponse)


class _TlsConnection(HTTPSConnection):
    def getresponse(self) -> HTTPResponse:  # type: ignore[override]  # as urllib3 has it
        return _within(self, super().getresponse)


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


def _within(connection: HTTPConnection, read: Callable[[], HTTPResponse]) -> HTTPResponse:
    """Raises TimeoutError. A cut connection alone would look like an answer whose head is over."""
    is_late = threading.Event()

    def cut() -> None:
        is_late.set()
        if connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(float(connection.timeout or 0.0), cut)
    timer.daemon = True
    timer.start()
    try:
        answer = read()
    finally:
        timer.cancel()
    if is_late.is_set():
        answer.close()
        raise TimeoutError("timed out")
    return answer
