"""Typed frames over a pair of pipes: how a supervisor and its child talk (4 bytes of length, then msgpack).

Pipes and not ZMQ, because their end of file is the one reliable sign that the other process is gone.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import trio

from protocol.codec import Codec

T = TypeVar("T")

MAX_CONTROL_BYTES = 4 * 1024 * 1024


class FrameReader(Generic[T]):
    """Reads frames of one union. One task at a time.

    `receive` raises trio.EndOfChannel at end of file (also in the middle of a frame), trio.BrokenResourceError if the
    pipe breaks, and msgspec.DecodeError for a frame that is not of the union: the peer is not one of ours then.
    """

    def __init__(self, stream: trio.abc.ReceiveStream, codec: Codec[T]) -> None:
        self._stream = stream
        self._codec = codec
        self._buffer = bytearray()

    async def receive(self) -> T:
        """Cancelled, it loses nothing: what has come of a frame stays in the buffer."""
        while (frame := self._whole_frame()) is None:
            data = await self._stream.receive_some(65536)
            if not data:
                raise trio.EndOfChannel
            self._buffer += data
        return self._codec.decode(frame)

    def _whole_frame(self) -> bytes | None:
        if len(self._buffer) < 4:
            return None
        end = 4 + int.from_bytes(self._buffer[:4], "little")
        if end > MAX_CONTROL_BYTES:
            raise trio.BrokenResourceError(f"a control frame of {end} bytes; the limit is {MAX_CONTROL_BYTES}")
        if len(self._buffer) < end:
            return None
        frame = bytes(self._buffer[4:end])
        del self._buffer[:end]
        return frame


class FrameWriter(Generic[T]):
    """Writes frames of one union; the writes of several tasks do not mix.

    A write that is cancelled half-way leaves the pipe unusable, which only happens when the whole actor is being torn
    down.
    """

    def __init__(self, stream: trio.abc.SendStream, codec: Codec[T]) -> None:
        self._stream = stream
        self._codec = codec
        self._lock = trio.Lock()

    async def send(self, message: T) -> None:
        """Raises trio.BrokenResourceError when the other side is gone."""
        frame = self._codec.encode(message)
        async with self._lock:
            await self._stream.send_all(len(frame).to_bytes(4, "little") + frame)
