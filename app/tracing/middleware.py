"""Begins a trace for each request that runs the model, and ends it when the answer is out, however it ended.

Within the door (app/auth.py), so that only who may ask anything leaves spans; within the access log, whose notes it
reads.
"""

from __future__ import annotations

from typing import final

from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, Scope

from app.access_log import access_in
from app.auth import routed_path
from app.tracing.attributes import OPERATIONS, first_attributes, outcome_of
from app.tracing.start import Tracing
from app.tracing.trace_context import read_trace_context
from app.tracing.worked_for import Conclude, worked_for


@final
class TracingMiddleware:
    """Around the routes."""

    def __init__(self, app: ASGIFramework, tracing: Tracing, conclude: Conclude = outcome_of) -> None:
        self._app = app
        self._tracing = tracing
        self._conclude = conclude

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = routed_path(scope)
        if scope["method"] != "POST" or path not in OPERATIONS:
            await self._app(scope, receive, send)
            return
        caller = read_trace_context(scope["headers"]) if self._tracing.reads_callers else None
        trace = self._tracing.source.begin(caller, first_attributes(scope["method"], path))
        access = access_in(scope)
        access.trace_id = trace.trace_id
        with worked_for(trace, access, self._conclude):
            await self._app(scope, receive, send)
