"""Memory is there before frames are written for the first time, and not for more frames than are used next."""

from __future__ import annotations

import os

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors.kv.memory_ahead import SLICE_BYTES, MemoryAhead
from actors.kv.window import Window
from protocol.kv import KvLayout
from tests.helpers.kv_actor import open_kv_house

FRAME_BYTES = 1 << 20
AHEAD = 4 * SLICE_BYTES


def memory(window: Window) -> int:
    """Bytes that the system has given to it."""
    return os.fstat(window.descriptor).st_blocks * 512


class Use:
    """How many frames have been used."""

    def __init__(self) -> None:
        self.count = 0
        self._more = trio.Event()

    def use(self, count: int) -> None:
        self.count += count
        self._more.set()
        self._more = trio.Event()

    async def more(self) -> None:
        await self._more.wait()


@pytest.fixture
def window():
    with Window(KvLayout(b"", 16, [FRAME_BYTES]), 12) as window:
        yield window


async def test_memory_goes_ahead_of_use_until_all_frames_have_some(window, nursery, autojump_clock):
    use = Use()
    nursery.start_soon(MemoryAhead(window, AHEAD).keep, lambda: use.count, use.more)
    for used in (0, 3, 3, 2):
        use.use(used)
        await trio.sleep(1)
        assert memory(window) == min(use.count * FRAME_BYTES + AHEAD, window.num_bytes)
    with trio.fail_after(1):
        while nursery.child_tasks:
            await trio.sleep(0.1)


async def test_what_is_in_frames_stays(window, nursery, autojump_clock):
    for frame in range(12):
        window.frame(frame)[:8] = frame.to_bytes(8)
    await MemoryAhead(window).keep(lambda: 0, trio.sleep_forever)
    assert [int.from_bytes(window.frame(frame)[:8]) for frame in range(12)] == list(range(12))


async def test_others_have_their_turns_meanwhile(window, nursery):
    nursery.start_soon(MemoryAhead(window).keep, lambda: 0, trio.sleep_forever)
    await wait_all_tasks_blocked()
    assert memory(window) == SLICE_BYTES


async def test_where_the_system_cannot_it_is_left_alone(window, monkeypatch):
    monkeypatch.setattr("actors.kv.window.MADV_POPULATE_WRITE", 9999)
    await MemoryAhead(window).keep(lambda: 0, trio.sleep_forever)
    assert memory(window) == 0


async def test_a_connector_has_memory_before_its_engine_writes(autojump_clock):
    async with open_kv_house() as house:
        engine = await house.start_engine()
        assert os.stat(engine.facts.window.path).st_blocks > 0
