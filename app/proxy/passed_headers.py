"""Which headers go through the proxy, and which are between it and one side. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from app.request_label import HEADER
from app.tracing.trace_context import TraceContext

Headers = list[tuple[bytes, bytes]]

LABEL = HEADER.lower().encode()
OF_ONE_CONNECTION = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings"),
    )
)
NOT_UP = OF_ONE_CONNECTION | {b"host", b"content-length", b"expect", b"accept-encoding", b"origin", b"cookie", LABEL}
"""An origin was judged here, and compressed answers could not be looked into."""
NOT_DOWN = OF_ONE_CONNECTION | {b"date", b"server", b"alt-svc", b"set-cookie", LABEL}
TRACE_HEADERS = (b"traceparent", b"tracestate")
KEYS = frozenset((b"authorization", b"x-api-key"))


def passed_up(sent: Iterable[tuple[bytes, bytes]], label: str, key: str | None) -> Headers:
    """What a server is told of a client's request, without what is said of its body's length. `key`: ours, which goes
    instead of the client's."""
    headers = [(name.lower(), value) for name, value in sent]
    dropped = NOT_UP | _named_by_connection(headers) | (KEYS if key is not None else frozenset())
    passed = [(name, value) for name, value in headers if name not in dropped and not name.startswith(b":")]
    passed += [(LABEL, label.encode()), (b"accept-encoding", b"identity")]
    return [*passed, (b"authorization", f"Bearer {key}".encode())] if key is not None else passed


def with_trace(headers: Headers, trace: TraceContext) -> Headers:
    """What a server does for us belongs to our span, which may belong to the client's."""
    others = [(name, value) for name, value in headers if name not in TRACE_HEADERS]
    state = [(b"tracestate", trace.state.encode())] if trace.state else []
    return [*others, (b"traceparent", trace.traceparent.encode()), *state]


def passed_down(answered: Iterable[tuple[bytes, bytes]]) -> Headers:
    """What a client is told of a server's answer."""
    headers = [(name.lower(), value) for name, value in answered]
    dropped = NOT_DOWN | _named_by_connection(headers)
    return [(name, value) for name, value in headers if name not in dropped]


def _named_by_connection(headers: Headers) -> frozenset[bytes]:
    lines = (value for name, value in headers if name == b"connection")
    return frozenset(each.strip().lower() for line in lines for each in line.split(b","))
