"""Over the connection itself: the owner sends frames as they lie, many with one call, and the reader receives each into
its place. With a checksum each, as the last word on whether a stream is what was sent: TCP's own is weak. XXH3 costs a
tenth of what CRC-32 does, which took as long as all the rest, and misses one in 2^64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import final

import trio
from xxhash import xxh3_64_intdigest

from actors.kv.conversation import ANSWER_SECONDS, Conversation
from actors.kv.lending import FetchError, Lent
from actors.kv.peer_messages import Batch, SendBlocks, encode
from actors.kv.transports.transport import Reading
from actors.kv.window import Window
from actors.kv.wire import Wire

BATCH_BYTES = 4 << 20
BATCH_FRAMES = 64
SLOWEST = 4 << 20
"""Bytes per second: a connection that carries less is as good as none, since computing is faster."""


def seconds_for(num_bytes: int) -> float:
    """In which they have to come, if they come at all."""
    return ANSWER_SECONDS + num_bytes / SLOWEST


@final
class Tcp:
    name = "tcp"
    is_local = False
    stops_at_once = True

    async def read(self, conversation: Conversation, reading: Reading) -> None:
        await conversation.tell(SendBlocks(conversation.number(), len(reading.frames)))
        received = 0
        while received < len(reading.frames):
            batch = await conversation.answer(Batch)
            if not batch.checksums:
                raise FetchError("expired", "the lease was over before its blocks were sent")
            frames = reading.frames[received : received + len(batch.checksums)]
            if len(frames) != len(batch.checksums):
                raise FetchError("broken", "the other connector sends more than was asked for")
            await _receive(conversation.wire, reading.window, frames, batch.checksums)
            received += len(frames)

    async def settle(self) -> None:
        await trio.lowlevel.checkpoint()


async def _receive(wire: Wire, window: Window, frames: Sequence[int], checksums: Sequence[int]) -> None:
    views = [window.frame(frame) for frame in frames]
    try:
        with trio.fail_after(seconds_for(len(frames) * window.frame_bytes)):
            await wire.receive_into(views)
        if [xxh3_64_intdigest(view) for view in views] != checksums:
            raise FetchError("broken", "a block came with other bytes than it was sent with")
    except trio.TooSlowError:
        raise FetchError("timeout", "the other connector sends too slowly, or no more") from None
    finally:
        for view in views:
            view.release()


async def send_blocks(
    wire: Wire, number: int, lent: Sequence[Lent], window: Window, holds: Callable[[Sequence[Lent]], bool]
) -> None:
    """The owner's half. `holds` says whether these still lie there as they were lent. Raises FetchError."""
    for batch in _batches(lent, window.frame_bytes):
        if not holds(batch):
            await wire.send(encode(Batch(number, [])))
            return
        await _send(wire, number, window, [one.frame for one in batch])


async def _send(wire: Wire, number: int, window: Window, frames: Sequence[int]) -> None:
    views = [window.frame(frame) for frame in frames]
    try:
        batch = Batch(number, [xxh3_64_intdigest(view) for view in views])
        with trio.fail_after(seconds_for(len(frames) * window.frame_bytes)):
            await wire.send_before(encode(batch), views)
    except trio.TooSlowError:
        raise FetchError("timeout", "the other connector takes too slowly, or no more") from None
    finally:
        for view in views:
            view.release()


def _batches(lent: Sequence[Lent], frame_bytes: int) -> Iterator[Sequence[Lent]]:
    most = max(1, min(BATCH_FRAMES, BATCH_BYTES // frame_bytes))
    for first in range(0, len(lent), most):
        yield lent[first : first + most]
