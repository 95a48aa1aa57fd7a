"""A collector of OpenTelemetry traces on a loopback port, which keeps what it is sent; and what it has as trees."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import attrs
import h11
import trio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TRACE_PATH = b"/v1/traces"


@attrs.define(eq=False)
class ToldSpan:
    """A span as it arrived, with those that name it as their parent. Times are nanoseconds since 1970."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    began: int
    ended: int
    kind: int
    attributes: dict[str, object]
    events: list[tuple[str, dict[str, object]]]
    is_error: bool
    failure: str
    resource: dict[str, object]
    state: str
    children: list[ToldSpan] = attrs.field(factory=list)

    @property
    def seconds(self) -> float:
        return (self.ended - self.began) / 1e9

    def all(self) -> Iterator[ToldSpan]:
        yield self
        for child in self.children:
            yield from child.all()

    def only(self, name: str) -> ToldSpan:
        [found] = [span for span in self.all() if span.name == name]
        return found


@attrs.define(eq=False)
class OtlpCollector:
    """Of one test."""

    url: str = ""
    status: int = 200
    hangs: bool = False
    """It takes what it is sent and says nothing."""
    spans: list[ToldSpan] = attrs.field(factory=list)
    num_requests: int = 0
    headers: dict[str, str] = attrs.field(factory=dict)
    """Of the latest request."""
    news: trio.Event = attrs.field(factory=trio.Event)

    async def until(self, count: int, name: str = "llm_request", seconds: float = 15.0) -> list[ToldSpan]:
        """Roots of trees: at least so many spans of this name, whose parents were not sent here."""
        with trio.fail_after(seconds):
            while len(found := [span for span in self.roots() if span.name == name]) < count:
                await self.news.wait()
        return found

    def roots(self) -> list[ToldSpan]:
        by_id = {span.span_id: span for span in self.spans}
        for span in self.spans:
            span.children = []
        for span in self.spans:
            if (parent := by_id.get(span.parent_id)) is not None:
                parent.children.append(span)
        for span in self.spans:
            span.children.sort(key=lambda child: child.began)
        return [span for span in self.spans if span.parent_id not in by_id]

    async def _serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            connection = h11.Connection(h11.SERVER)
            while True:
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    connection.receive_data(await stream.receive_some(65536))
                elif isinstance(event, h11.Request):
                    request, body = event, bytearray()
                elif isinstance(event, h11.Data):
                    body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    self.num_requests += 1
                    if self.hangs:
                        await trio.sleep_forever()
                    status = self._take(request, bytes(body))
                    reply = h11.Response(status_code=status, headers=[("content-length", "0")])
                    await stream.send_all(connection.send(reply) + connection.send(h11.EndOfMessage()))
                    if connection.our_state is h11.MUST_CLOSE:
                        return
                    connection.start_next_cycle()
                else:
                    return

    def _take(self, request: h11.Request, body: bytes) -> int:
        self.headers = {name.decode(): value.decode() for name, value in request.headers}
        if request.target != TRACE_PATH:
            return 404
        if self.status == 200:
            data = gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
            self.spans += spans_of(ExportTraceServiceRequest.FromString(data))
        self.news.set()
        self.news = trio.Event()
        return self.status


def spans_of(told: ExportTraceServiceRequest) -> list[ToldSpan]:
    return [
        ToldSpan(
            span.name,
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            span.kind,
            plain(span.attributes),
            [(event.name, plain(event.attributes)) for event in span.events],
            span.status.code == span.status.STATUS_CODE_ERROR,
            span.status.message,
            plain(of_resource.resource.attributes),
            span.trace_state,
        )
        for of_resource in told.resource_spans
        for scope in of_resource.scope_spans
        for span in scope.spans
    ]


def plain(attributes: object) -> dict[str, object]:
    return {pair.key: plain_value(pair.value) for pair in attributes}


def plain_value(value: object) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain_value(item) for item in value.array_value.values]
    return {
        "string_value": value.string_value,
        "bool_value": value.bool_value,
        "int_value": value.int_value,
        "double_value": value.double_value,
    }[kind]


@asynccontextmanager
async def open_collector(**how: object) -> AsyncIterator[OtlpCollector]:
    collector = OtlpCollector(**how)
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, collector._serve, 0)
        port = listeners[0].socket.getsockname()[1]
        collector.url = f"http://127.0.0.1:{port}"
        yield collector
        nursery.cancel_scope.cancel()
