"""Between connectors of one machine: the owner hands over its window's descriptor, and the reader reads from there.

Reads, instead of mapping: a file that turns out shorter than it was said to be is an error then, and no signal, and
Python's other threads go on meanwhile. The owner takes no further part, so that it may be slow, or stopped.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from typing import final

import trio

from actors.kv.conversation import ANSWER_SECONDS, Conversation
from actors.kv.lending import FetchError
from actors.kv.peer_messages import OpenedWindow, OpenWindow, encode
from actors.kv.transports.transport import NotStartedError, Reading
from actors.kv.window import Window
from actors.kv.wire import Wire

INLINE_BYTES = 256 << 10
"""Up to this, a thread takes longer to be asked than to do it."""
MOST_BYTES = 4 << 20
"""Of one read: as long as that a cancellation waits."""
MOST_FRAMES = 256


@final
class SharedMemory:
    name = "shm"
    is_local = True
    stops_at_once = True

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(2)

    async def read(self, conversation: Conversation, reading: Reading) -> None:
        descriptor = await self._open(conversation)
        try:
            _check(descriptor, reading.num_frames * reading.window.frame_bytes)
            if reading.num_bytes <= INLINE_BYTES:
                _copy(descriptor, reading, lambda: None)
            else:
                check = trio.from_thread.check_cancelled
                await trio.to_thread.run_sync(_copy, descriptor, reading, check, limiter=self._limiter)
        finally:
            os.close(descriptor)

    async def _open(self, conversation: Conversation) -> int:
        await conversation.tell(OpenWindow(conversation.number()))
        opened = await conversation.answer(OpenedWindow)
        if opened.problem is not None:
            raise NotStartedError(f"the other connector cannot hand over its memory: {opened.problem}")
        with trio.move_on_after(ANSWER_SECONDS):
            return await conversation.wire.receive_descriptor()
        raise FetchError("timeout", f"the other connector has not handed over its memory for {ANSWER_SECONDS:g} s")

    async def settle(self) -> None:
        await trio.lowlevel.checkpoint()


async def hand_over(wire: Wire, number: int, window: Window) -> None:
    """The owner's half. Who gets it can only read."""
    try:
        descriptor = os.open(f"/proc/self/fd/{window.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        await wire.send(encode(OpenedWindow(number, str(error))))
        return
    try:
        await wire.send(encode(OpenedWindow(number, None)))
        await wire.send_descriptor(descriptor)
    finally:
        os.close(descriptor)


def _check(descriptor: int, size: int) -> None:
    """That it is memory, where no read waits for anything but memory, and enough of it."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        status = os.fstat(descriptor)
    except OSError as error:
        raise FetchError("broken", "the other connector hands over what is no memory") from error
    if not stat.S_ISREG(status.st_mode) or status.st_size < size:
        raise FetchError("broken", f"the other connector hands over {status.st_size} bytes where it has {size}")


def _copy(descriptor: int, reading: Reading, check_cancelled: Callable[[], None]) -> None:
    size = reading.window.frame_bytes
    for first, count in _runs(reading):
        check_cancelled()
        views = [reading.window.frame(frame) for frame in reading.frames[first : first + count]]
        try:
            copied = os.preadv(descriptor, views, reading.sources[first] * size)
        except OSError as error:
            raise FetchError("broken", f"the other connector's memory cannot be read: {error}") from error
        finally:
            for view in views:
                view.release()
        if copied != count * size:
            raise FetchError("broken", "the other connector's memory has become shorter")


def _runs(reading: Reading) -> Iterator[tuple[int, int]]:
    """Where sources lie one after the other, up to what is read at once: the first, and how many."""
    most = max(1, min(MOST_FRAMES, MOST_BYTES // reading.window.frame_bytes))
    first = 0
    for place in range(1, len(reading.sources) + 1):
        is_over = place == len(reading.sources) or reading.sources[place] != reading.sources[place - 1] + 1
        if is_over or place - first == most:
            yield first, place - first
            first = place
