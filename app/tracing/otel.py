"""Spans of OpenTelemetry from what was noted of requests: the one module that imports OpenTelemetry.

Resource, sampler, headers, certificates and deadlines are what OTEL_* variables say, as its SDK reads them. Opened by
app/tracing/start.py, only with --otlp-traces-endpoint.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
    use_span,
)

from app.tracing.collector_session import CollectorSession
from app.tracing.endpoint import has_credential_provider, hint, shown
from app.tracing.export import SpanExport
from app.tracing.request_trace import Outcome, RequestTrace, ToolSpan
from app.tracing.span import Attributes, SpanRecord
from app.tracing.trace_context import TraceContext

REQUEST_SPAN = "llm_request"
"""vLLM's name for it."""
MAX_TOOL_NAME = 128
_LIBRARY = "trillm"
_ERRNO = re.compile(r"\[Errno -?\d+\] ([^'\")]+)")
_HTTP_ERROR = re.compile(r"code: (\d+|None), reason: (.+)")
_GIVEN_UP = "due to timeout, max retries or shutdown"
"""Told after each attempt was told; the first may already have taken all the time that there is."""
_LATE = re.compile(r"timed? ?out", re.IGNORECASE)


@final
class LastWords(logging.Handler):
    """The exporter tells why it has failed only in the log. Kept here, and not told line by line."""

    def __init__(self) -> None:
        super().__init__()
        self.reason = ""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if found := _ERRNO.search(text):
            self.reason = found[1].strip()
        elif found := _HTTP_ERROR.search(text):
            self.reason = f"HTTP {found[1]} {found[2][:80]}" if found[1] != "None" else found[2][:160]
        elif _GIVEN_UP in text or _LATE.search(text):
            self.reason = self.reason or "no answer in time"
        else:
            self.reason = self.reason or text[:160]


@final
class OtlpSender:
    """Sends batches over HTTP, in whatever thread calls it."""

    def __init__(self, url: str) -> None:
        session = None if has_credential_provider(os.environ) else CollectorSession()
        self._exporter = OTLPSpanExporter(endpoint=url, session=session)
        self._url = url
        self._words = LastWords()
        own = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        own.addHandler(self._words)
        own.propagate = False

    def send(self, spans: Sequence[ReadableSpan]) -> str | None:
        """None, or why they are lost."""
        self._words.reason = ""
        if self._exporter.export(spans) is SpanExportResult.SUCCESS:
            return None
        return (self._words.reason or "no reason given") + hint(self._url)

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


@final
class Ended(SpanProcessor):
    """Puts spans that have ended into the queue."""

    def __init__(self, put: Callable[[ReadableSpan], None]) -> None:
        self._put = put

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            self._put(span)


def open_export(url: str, *, max_queue: int, max_batch: int, delay: float) -> SpanExport[ReadableSpan]:
    sender = OtlpSender(url)
    return SpanExport(
        sender.send, sender.close, max_queue=max_queue, max_batch=max_batch, delay=delay, where=shown(url)
    )


def resource(service: str, version: str, server: int | None) -> Resource:
    """What this process is. `service`: its name, unless OTEL_SERVICE_NAME has another one. `server`: which of several
    API servers. service.instance.id is a random one of each."""
    named = OTELResourceDetector().detect().attributes
    own: dict[str, str | int] = {"service.version": version}
    if "service.name" not in named:
        own["service.name"] = service
    if server is not None:
        own["trillm.api_server"] = server
    return Resource.create(own)


@final
class ToolCall:
    """Fulfils ToolSpan."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def failed(self, reason: str) -> None:
        self._span.set_attribute("error.type", reason)
        self._span.set_status(Status(StatusCode.ERROR, reason))


@final
class OtelSource:
    """Fulfils app.tracing.request_trace.SpanSource. `put` is given every span that has ended."""

    def __init__(
        self,
        resource: Resource,
        put: Callable[[ReadableSpan], None],
        version: str,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """`wall_clock`: nanoseconds since 1970, which spans are told in; read once for each request."""
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(Ended(put))
        self._tracer = provider.get_tracer(_LIBRARY, version)
        self._clock = clock
        self._wall_clock = wall_clock
        self._open: dict[RequestTrace, Span] = {}

    def begin(self, caller: TraceContext | None, attributes: Attributes) -> RequestTrace:
        """A request that has come; part of the caller's trace if there is one."""
        parent = Context() if caller is None else _inside(caller, is_remote=True)
        return self._begin(parent, SpanKind.SERVER, attributes)

    def in_background(self, trace: RequestTrace) -> RequestTrace:
        attributes: Attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "trillm",
            "trillm.background": True,
        }
        return self._begin(_inside(trace.context), SpanKind.INTERNAL, attributes)

    def _begin(self, parent: Context, kind: SpanKind, attributes: Attributes) -> RequestTrace:
        began = self._clock()
        zero = self._wall_clock() - _ns(began)
        span = self._tracer.start_span(REQUEST_SPAN, parent, kind, attributes, start_time=zero + _ns(began))
        own = span.get_span_context()
        context = TraceContext(own.trace_id, own.span_id, own.trace_flags.sampled, own.trace_state.to_header())
        trace = RequestTrace(context, began, zero, self, self._clock)
        if span.is_recording():
            self._open[trace] = span
        return trace

    def end(self, trace: RequestTrace, outcome: Outcome) -> None:
        span, zero = self._open.pop(trace, None), trace.zero
        if span is None:
            return
        span.set_attributes(outcome.attributes)
        for event in trace.events:
            span.add_event(event.name, event.attributes, zero + _ns(event.at))
        if outcome.failure is not None:
            span.set_status(Status(StatusCode.ERROR, outcome.failure))
        inside = set_span_in_context(span, Context())
        for child in trace.children(outcome.ended):
            self._tell(child, inside, zero)
        span.end(zero + _ns(outcome.ended))

    def _tell(self, record: SpanRecord, parent: Context, zero: int) -> None:
        span = self._tracer.start_span(
            record.name, parent, SpanKind.INTERNAL, record.attributes, start_time=zero + _ns(record.began)
        )
        inside = set_span_in_context(span, Context())
        for child in record.children:
            self._tell(child, inside, zero)
        span.end(zero + _ns(record.ended))

    @contextmanager
    def tool_call(self, trace: RequestTrace, server_label: str, name: str) -> Iterator[ToolSpan]:
        """While it lasts, it is what the MCP package finds as the current span: it writes that into its requests."""
        zero = trace.zero
        attributes: Mapping[str, str] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name[:MAX_TOOL_NAME],
            "mcp.method.name": "tools/call",
            "trillm.mcp.server_label": server_label,
        }
        span = self._tracer.start_span(
            f"execute_tool {name[:MAX_TOOL_NAME]}",
            _inside(trace.context),
            SpanKind.CLIENT,
            attributes,
            start_time=zero + _ns(self._clock()),
        )
        call = ToolCall(span)
        try:
            with use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
                yield call
        finally:
            span.end(zero + _ns(self._clock()))


def _inside(span: TraceContext, *, is_remote: bool = False) -> Context:
    flags = TraceFlags(TraceFlags.SAMPLED if span.is_sampled else TraceFlags.DEFAULT)
    state = TraceState.from_header([span.state]) if span.state else None
    context = SpanContext(span.trace_id, span.span_id, is_remote, flags, state)
    return set_span_in_context(NonRecordingSpan(context), Context())


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
