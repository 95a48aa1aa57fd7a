"""One HTTP/2 connection: many requests at once, each with bounds of its own. In place of hypercorn's own class, by
app/http2.py.

hypercorn's waits without a deadline for windows that never open, stops reading for all requests while one does not take
its body, fails on a body that comes after its answer, and counts neither resets nor pings. Here each stream waits for
itself (app/http2_stream.py), and what costs its sender nothing has an allowance. The `h2` package knows the protocol.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import final

import h2.events
import h2.exceptions
import trio
from h2.errors import ErrorCodes
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.typing import AppWrapper, ConnectionState, TaskGroup, WorkerContext
from hyperframe.frame import GoAwayFrame

from app.bounded_send import BoundedSends
from app.http2_floods import Http2Floods
from app.http2_frames import make_frames
from app.http2_scope import Address, Headers, http2_scope
from app.http2_stream import Http2Stream

logger = logging.getLogger("trillm.http")

MAX_STREAMS = 256
"""Requests at once on one connection, handlers that are still being cancelled included."""
PIECE_BYTES = 4 * 2**10
"""What is read at once before others get their turn: some hundred frames at most."""
WINDOW_BYTES = 16 * 2**10
"""When so much has come in, the connection's window is opened again; each stream's is what holds back."""

_Send = Callable[[Event], Awaitable[None]]


@final
class Http2Connection:
    """What hypercorn's ProtocolWrapper expects of a protocol: initiate and handle."""

    def __init__(
        self,
        sends: BoundedSends,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        task_group: TaskGroup,
        state: ConnectionState,
        ssl: bool,
        client: Address,
        server: Address,
        send: _Send,
    ) -> None:
        self._sends = sends
        self._app = app
        self._config = config
        self._context = context
        self._task_group = task_group
        self._state = state
        self._scheme = "https" if ssl else "http"
        self._client = client
        self._server = server
        self._send = send
        self._h2 = make_frames(MAX_STREAMS)
        self._streams: dict[int, Http2Stream] = {}
        self._is_closed = False
        self._is_over = False
        """Nothing more may be begun here: one side has said goodbye."""
        self._awaited: frozenset[int] | None = None
        """Once the server is about to stop: the streams that ran when the first one after that came."""
        self._has_told_idle = True
        self._unopened = 0
        self._floods = Http2Floods(trio.current_time())

    async def initiate(self) -> None:
        self._h2.initiate_connection()
        await self._flush()
        await self._send(Updated(idle=True))  # it may have begun as a request of HTTP/1, which stopped the clock

    async def handle(self, event: Event) -> None:
        if isinstance(event, RawData):
            await self._receive(event.data)
        elif isinstance(event, Closed):
            self._end()

    def _end(self) -> None:
        self._is_closed = True
        for stream in self._streams.values():
            stream.leave()

    # ------------------------------------------------------------------ reading

    async def _receive(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE_BYTES):
            if start:
                await trio.lowlevel.checkpoint()
            if self._is_closed:
                return
            try:
                events = self._h2.receive_data(data[start : start + PIECE_BYTES])
                for event in events:
                    self._take(event)
                self._open_window()
            except h2.exceptions.ProtocolError:  # its GOAWAY is ready
                return await self._hang_up()
            if self._h2.is_over:
                return await self._hang_up()
            if self._floods.is_one(events, trio.current_time()):
                self._h2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
                return await self._hang_up()
            await self._flush()
            await self._tell_idle()
        return None

    def _take(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived():
                self._begin(event)
            case h2.events.DataReceived():
                self._unopened += event.flow_controlled_length
                if stream := self._streams.get(event.stream_id):  # else it has had its answer
                    stream.take(event.data, event.flow_controlled_length)
            case h2.events.StreamEnded():
                if stream := self._streams.get(event.stream_id):
                    stream.end()
            case h2.events.StreamReset():
                if stream := self._streams.get(event.stream_id):
                    stream.leave()
            case h2.events.WindowUpdated(stream_id=number) if number:
                if stream := self._streams.get(number):
                    stream.open_window()
            case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                for stream in self._streams.values():
                    stream.open_window()
            case h2.events.ConnectionTerminated():
                self._is_over = True  # it will ask for nothing more, and may read what it has asked for

    def _open_window(self) -> None:
        if self._unopened >= WINDOW_BYTES:
            self._h2.increment_flow_control_window(self._unopened)
            self._unopened = 0

    def _begin(self, request: h2.events.RequestReceived) -> None:
        """Start a request's handler, or say why not: a refused stream may be tried again elsewhere."""
        number, headers = request.stream_id, request.headers
        if self._is_over or self._has_drained() or len(self._streams) >= MAX_STREAMS:
            self._h2.reset_stream(number, ErrorCodes.REFUSED_STREAM)
            self._floods.count_refusal()
            return None
        scope = http2_scope(headers, self._config, self._state, self._scheme, self._client, self._server)
        if isinstance(scope, int):
            return self._refuse(request, scope)
        stream = Http2Stream(number, scope, self._h2, self._flush_data, self._sends, self._response_headers)
        self._streams[number] = stream
        self._task_group.spawn(self._run, stream)
        return None

    def _has_drained(self) -> bool:
        """Whether the server is about to stop and what ran here has ended. Until then requests are still handed to the
        application, which says so to those it cannot take: many clients give up what runs when they hear a goodbye, so
        that none is said before its end. After that nobody may keep the server waiting by asking on and on."""
        if not self._context.terminated.is_set():
            return False
        if self._awaited is None:
            self._awaited = frozenset(self._streams)
        return self._awaited.isdisjoint(self._streams)

    def _refuse(self, request: h2.events.RequestReceived, status: int) -> None:
        """A status and nothing else, to what no handler could read."""
        headers = [(b":status", b"%d" % status), (b"content-length", b"0"), *self._response_headers()]
        self._h2.send_headers(request.stream_id, headers, end_stream=True)
        if request.stream_ended is None:
            self._h2.reset_stream(request.stream_id, ErrorCodes.NO_ERROR)
        self._floods.count_refusal()

    def _response_headers(self) -> Headers:
        found: Headers = self._config.response_headers("h2")
        return found

    # ------------------------------------------------------------------ handlers

    async def _run(self, stream: Http2Stream) -> None:
        """The whole of one request. Its failure is its own: the others on this connection go on."""
        began = trio.current_time()
        try:
            await self._handle(stream)
            stream.finish()
            await self._flush()
            await self._config.log.access(stream.scope, stream.response, trio.current_time() - began)
            await stream.discard_rest()
        finally:
            stream.finish()
            stream.close()
            del self._streams[stream.number]
            await self._flush()
            await self._tell_idle()
        await self._context.mark_request()

    async def _handle(self, stream: Http2Stream) -> None:
        try:
            await self._app(stream.scope, stream.receive, stream.send, trio.to_thread.run_sync, trio.from_thread.run)
        except trio.Cancelled:
            raise
        except BaseExceptionGroup as group:
            _, others = group.split(trio.Cancelled)
            if not isinstance(others, ExceptionGroup):  # only cancelled, or what ends the whole process
                raise
            logger.error("a request over HTTP/2 failed", exc_info=others)
        except Exception:
            logger.exception("a request over HTTP/2 failed")

    async def _tell_idle(self) -> None:
        """hypercorn closes a connection on which nothing has been asked for a while, or at once when it is to end."""
        is_idle = not self._streams
        if is_idle != self._has_told_idle and not self._is_closed:
            self._has_told_idle = is_idle
            with trio.CancelScope(shield=True):
                await self._send(Updated(idle=is_idle))

    # ------------------------------------------------------------------ writing

    async def _flush_data(self) -> None:
        """After a frame of an answer, for which a client owes two frames about windows."""
        self._floods.allow_for_data()
        await self._flush()

    async def _flush(self) -> None:
        """Write what there is to be written, in the order in which it was said. Shielded, since half a frame would end
        the whole connection; how long it takes is app/bounded_send.py's concern."""
        data = self._h2.data_to_send()
        if data and not self._is_closed:
            with trio.CancelScope(shield=True):
                await self._send(RawData(data))

    async def _hang_up(self) -> None:
        """With what is still to be said, which is why."""
        await self._flush()
        self._end()
        await self._send(Closed())

    async def say_goodbye(self) -> bool:
        """GOAWAY as the protocol means it: h2's own method would take what runs for ended. False, and nothing is said,
        if a request has come just now: it is to be answered first."""
        if self._streams:
            return False
        self._is_over = True
        if not self._is_closed:
            await self._flush()
            frame = GoAwayFrame(last_stream_id=self._h2.highest_inbound_stream_id, error_code=ErrorCodes.NO_ERROR)
            with trio.CancelScope(shield=True):
                await self._send(RawData(frame.serialize()))
        return True
