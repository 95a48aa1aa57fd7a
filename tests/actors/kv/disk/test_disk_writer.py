"""What is taken to be written, when the connector is told to leave at that moment."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import trio

from actors.kv.disk_desk import in_thread
from actors.kv.disk_file import DiskFile
from actors.kv.disk_index import DiskIndex
from actors.kv.disk_writer import DiskWriter
from actors.kv.frames import Frames
from actors.kv.window import Window
from tests.helpers.kv_actor import LAYOUT, NUM_FRAMES, block_name


async def test_who_is_cancelled_takes_no_batch_that_is_not_written(tmp_path: Path):
    window, frames, index = Window(LAYOUT, NUM_FRAMES), Frames(NUM_FRAMES), DiskIndex(NUM_FRAMES)
    with closing(window), closing(DiskFile(tmp_path, LAYOUT)) as file:
        writer = DiskWriter(window, frames, 1 << 20, in_thread, trio.CapacityLimiter(1))
        (frame,) = frames.grant(1)
        frames.save(frame, block_name(1))
        writer.offer(block_name(1))
        with trio.CancelScope() as scope:
            scope.cancel()
            await writer.write_some(file, index)

        assert scope.cancelled_caught
        assert writer.is_due
        await writer.write_some(file, index)
        assert block_name(1) in index
