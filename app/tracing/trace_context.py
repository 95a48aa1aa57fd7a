"""Which trace a request belongs to, as its client says: W3C Trace Context's headers, read with no more trust than they
deserve. Pure; used by app/tracing/middleware.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from attrs import frozen

MAX_STATE_LENGTH = 512
"""Of `tracestate`, as the recommendation has it: what is longer is dropped, and the trace goes on."""
_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[ -~]*)?")
_FIRST_VERSION, _NO_VERSION = b"00", b"ff"
_SAMPLED = 1


@frozen
class TraceContext:
    """The caller's span."""

    trace_id: int
    """128 bits, not 0."""
    span_id: int
    """64 bits, not 0."""
    is_sampled: bool
    """Whether the caller records it."""
    state: str = ""
    """What vendors have to say of it to each other; handed on, and not looked into."""

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.is_sampled):02x}"


def read_trace_context(headers: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
    """None without a caller's trace, and for one that is malformed: the request then begins a trace of its own."""
    found: list[bytes] = []
    states: list[bytes] = []
    for name, value in headers:
        match name.lower():
            case b"traceparent":
                found.append(value)
            case b"tracestate":
                states.append(value)
    if len(found) != 1 or (match := _TRACEPARENT.fullmatch(found[0].strip(b" \t"))) is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == _NO_VERSION or (version == _FIRST_VERSION and more):
        return None
    context = TraceContext(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED), _state(states))
    return context if context.trace_id and context.span_id else None


def _state(values: list[bytes]) -> str:
    state = b",".join(values)
    return state.decode("ascii") if len(state) <= MAX_STATE_LENGTH and state.isascii() else ""
