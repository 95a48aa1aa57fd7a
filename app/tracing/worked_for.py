"""Whose trace a task's work belongs to, and when that is over. Used by app/tracing/middleware.py, and for responses
that go on in the background.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from app.access_log import Access
from app.tracing.attributes import outcome_of
from app.tracing.request_trace import Outcome, RequestTrace, current_trace

Conclude = Callable[[RequestTrace, Access, float], Outcome]
"""Says what became of it, when it is over."""


@contextmanager
def worked_for(trace: RequestTrace, access: Access, conclude: Conclude = outcome_of) -> Iterator[None]:
    """What this task does, and those that it starts, is the request's; with it the request is over."""
    token = current_trace.set(trace)
    try:
        yield
    except Exception:
        access.failure = access.failure or "internal"
        raise
    finally:
        current_trace.reset(token)
        trace.source.end(trace, conclude(trace, access, trace.clock()))


@contextmanager
def worked_for_in_background(access: Access) -> Iterator[None]:
    """The same for what goes on after its request, in a task that was started from there."""
    trace = current_trace.get()
    if trace is None:
        yield
        return
    with worked_for(trace.source.in_background(trace), access):
        try:
            yield
        except trio.Cancelled:
            access.is_cancelled = True
            raise
