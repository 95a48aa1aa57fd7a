"""HTTP/2 frame by frame, for what no client library would send or would hide. Nothing is acknowledged by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import hpack
import trio
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HUGE = 2**30


@attrs.define(eq=False)
class Http2Client:
    """`frames` are those that have come; `window` is what each stream may send us without asking."""

    stream: trio.abc.Stream
    frames: list[Frame] = attrs.field(factory=list)
    is_closed: bool = False
    _encoder: hpack.Encoder = attrs.field(factory=hpack.Encoder)
    _decoder: hpack.Decoder = attrs.field(factory=hpack.Decoder)
    _headers: dict[int, list[dict[str, str]]] = attrs.field(factory=dict)
    _rest: bytes = b""
    _next: int = 1

    async def begin(self, *, window: int = HUGE) -> None:
        settings = SettingsFrame(0, settings={SettingsFrame.INITIAL_WINDOW_SIZE: window})
        await self.stream.send_all(PREFACE + settings.serialize())
        if window == HUGE:
            await self.send(WindowUpdateFrame(0, window_increment=HUGE))

    async def send(self, *frames: Frame) -> None:
        await self.stream.send_all(b"".join(frame.serialize() for frame in frames))

    async def ask(
        self, path: str = "/", *headers: tuple[str, str], method: str = "GET", body: bytes | None = b""
    ) -> int:
        """Begin a request; its stream's number. With `body` None the body is yet to come."""
        number, self._next = self._next, self._next + 2
        frames: list[Frame] = [self.request(number, path, *headers, method=method, ends=body == b"")]
        frames += self.body(number, body) if body else []
        await self.send(*frames)
        return number

    def request(
        self, number: int, path: str, *headers: tuple[str, str], method: str = "GET", ends: bool = True
    ) -> HeadersFrame:
        pseudo = [(":method", method), (":authority", "localhost")]
        if method != "CONNECT":
            pseudo += [(":scheme", "http"), (":path", path)]
        block = self._encoder.encode([*pseudo, *headers], huffman=False)
        return HeadersFrame(number, data=block, flags=["END_HEADERS", *(["END_STREAM"] if ends else [])])

    def body(self, number: int, body: bytes, *, ends: bool = True) -> list[Frame]:
        pieces = [body[at : at + 16384] for at in range(0, len(body), 16384)]
        frames: list[Frame] = [DataFrame(number, data=piece) for piece in pieces]
        if ends:
            frames[-1].flags.add("END_STREAM")
        return frames

    async def hear(self) -> bool:
        """Take what has come next; whether there was anything."""
        try:
            data = await self.stream.receive_some(65536)
        except trio.BrokenResourceError:
            data = b""
        if not data:
            self.is_closed = True
            return False
        self._rest += data
        while len(self._rest) >= 9:
            frame, length = Frame.parse_frame_header(memoryview(self._rest[:9]))
            if len(self._rest) < 9 + length:
                break
            frame.parse_body(memoryview(self._rest[9 : 9 + length]))
            self._rest = self._rest[9 + length :]
            self.frames.append(frame)
            if isinstance(frame, HeadersFrame):
                assert "END_HEADERS" in frame.flags
                self._headers.setdefault(frame.stream_id, []).append(dict(self._decoder.decode(frame.data)))
        return True

    async def until(self, kind: type[Frame], number: int | None = None) -> Any:
        """The first frame of this kind (on this stream)."""
        while True:
            for frame in self.frames:
                if isinstance(frame, kind) and number in (None, frame.stream_id):
                    return frame
            assert await self.hear(), f"closed; {self.frames}"

    async def until_closed(self) -> None:
        while await self.hear():
            pass

    async def until_ended(self, number: int) -> tuple[int, bytes]:
        """Status and body of an answer that ends, or (0, what there was) of one that is reset."""
        while True:
            mine = [frame for frame in self.frames if frame.stream_id == number]
            if any(isinstance(frame, RstStreamFrame) and frame.error_code for frame in mine):
                return 0, self.data(number)
            if any("END_STREAM" in frame.flags for frame in mine if isinstance(frame, HeadersFrame | DataFrame)):
                return int(self.headers(number)[":status"]), self.data(number)
            assert await self.hear(), f"closed; {mine}"

    def headers(self, number: int) -> dict[str, str]:
        """Of the response; what comes before it, such as 100, is the one but last."""
        return self._headers[number][-1]

    def data(self, number: int) -> bytes:
        return b"".join(frame.data for frame in self.of(DataFrame) if frame.stream_id == number)

    def of(self, kind: type[Frame]) -> list[Any]:
        return [frame for frame in self.frames if isinstance(frame, kind)]

    def goodbye(self) -> int | None:
        """The code of the first GOAWAY."""
        return next((frame.error_code for frame in self.of(GoAwayFrame)), None)


@asynccontextmanager
async def open_http2(port: int, *, window: int = HUGE) -> AsyncIterator[Http2Client]:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        client = Http2Client(stream)
        await client.begin(window=window)
        yield client
