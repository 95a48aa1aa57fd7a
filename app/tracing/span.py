"""What is to be told of one part of a request: a span with those inside it, as plain data.

Made by app/tracing/request_trace.py when the request is over, and turned into OpenTelemetry's by app/tracing/otel.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import field, frozen

AttributeValue = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, AttributeValue]


@frozen
class SpanEvent:
    """Something that happened at one moment."""

    name: str
    at: float
    """Seconds of CLOCK_MONOTONIC, like all times here."""
    attributes: Attributes = field(factory=dict)


@frozen
class SpanRecord:
    """Begins no later than it ends, and what is inside it lies within it."""

    name: str
    began: float
    ended: float
    attributes: Attributes = field(factory=dict)
    children: Sequence[SpanRecord] = ()


def within(at: float, began: float, ended: float) -> float:
    """Of a moment that another process tells: no clock's last digit puts a span outside of the one that it is in."""
    return min(max(at, began), ended)
