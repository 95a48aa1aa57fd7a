"""Connectors as processes, over real sockets, mapped memory and files, with a test in their engines' places."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from actors.process import ChildProcess, open_process
from protocol.codec import KV_INPUT, KV_OUTPUT
from protocol.ids import EngineIndex, Epoch
from protocol.kv import ExportId, FindId, KvCounts, KvExport, KvExported, KvFind, KvFound, KvOutput, KvRoom, KvSaved
from protocol.links import Links, ReceiveLink, SendLink, open_links
from protocol.spec import Heartbeat, KvEngine, KvFacts, KvSpec, Ready
from tests.helpers.kv_actor import LAYOUT, NUM_FRAMES, block_bytes, names

pytestmark = pytest.mark.process
ENGINE_EPOCH = Epoch(50)


class Connected:
    """A connector's process and this end of its links. Made by `open_connector`."""

    def __init__(self, process: ChildProcess, facts: KvFacts, heard: ReceiveLink, said: SendLink) -> None:
        self.process = process
        self._heard = heard
        self._said = said
        self.granted: list[int] = []
        descriptor = os.open(facts.window.path, os.O_RDWR)
        self._memory = mmap.mmap(descriptor, facts.window.num_frames * LAYOUT.frame_bytes)
        os.close(descriptor)

    def close(self) -> None:
        self._memory.close()

    def frame(self, number: int) -> slice:
        return slice(number * LAYOUT.frame_bytes, (number + 1) * LAYOUT.frame_bytes)

    async def hear(self, kind: type[KvOutput]):
        with trio.fail_after(20):
            while True:
                message = await self._heard.receive()
                if isinstance(message, KvRoom):
                    self.granted += message.frames
                if isinstance(message, kind):
                    return message

    async def until_on_disk(self, num_blocks: int) -> None:
        with trio.fail_after(20):
            while (await self.hear(KvCounts)).disk_blocks < num_blocks:
                pass

    async def save(self, *numbers: int) -> None:
        while len(self.granted) < len(numbers):
            await self.hear(KvRoom)
        frames = [self.granted.pop() for _ in numbers]
        for frame, block_hash in zip(frames, names(*numbers), strict=True):
            self._memory[self.frame(frame)] = block_bytes(block_hash)
        self._said.send_nowait(KvSaved(ENGINE_EPOCH, frames, names(*numbers)))

    async def export(self, *numbers: int) -> bytes:
        self._said.send_nowait(KvExport(ENGINE_EPOCH, ExportId(1), names(*numbers)))
        return (await self.hear(KvExported)).ticket

    async def find(self, *numbers: int, ticket: bytes = b"") -> list[bytes]:
        self._said.send_nowait(KvFind(ENGINE_EPOCH, FindId(1), names(*numbers), ticket, 10.0))
        found = await self.hear(KvFound)
        assert found.error is None
        return [self._memory[self.frame(frame)] for frame in found.frames]


@contextlib.asynccontextmanager
async def open_connector(
    links: Links, directory: Path, index: int = 0, epoch: int = 1, disk: Path | None = None
) -> AsyncIterator[Connected]:
    spec = KvSpec(
        engine_index=EngineIndex(index),
        epoch=Epoch(epoch),
        inbox_address=f"ipc://{directory}/k{index}.{epoch}",
        engine_id=f"engine-{index}",
        key=b"k" * 32,
        window_bytes=NUM_FRAMES * LAYOUT.frame_bytes,
        disk_path=None if disk is None else str(disk),
        disk_bytes=1 << 20,
        peer_path=f"{directory}/p{index}.{epoch}",
    )
    address = f"ipc://{directory}/e{index}.{epoch}"
    with contextlib.closing(links.pull(address, KV_OUTPUT)) as heard:
        async with open_process(spec, f"kv-{index}") as process:
            await process.send(KvEngine(ENGINE_EPOCH, address, LAYOUT))
            with trio.fail_after(20):
                while isinstance(message := await process.receive(), Heartbeat):
                    pass
                assert isinstance(message, Ready), message
                assert isinstance(message.facts, KvFacts)
            with contextlib.closing(links.push(message.facts.inbox_address, KV_INPUT)) as said:
                connected = Connected(process, message.facts, heard, said)
                with contextlib.closing(connected):
                    yield connected


async def test_blocks_go_from_one_connector_to_another(tmp_path: Path):
    blocks = [block_bytes(one) for one in names(1, 2, 3)]
    with open_links() as links:
        async with open_connector(links, tmp_path, 0) as owner, open_connector(links, tmp_path, 1) as reader:
            await owner.save(1, 2, 3)
            ticket = await owner.export(1, 2, 3, 4)

            assert await reader.find(1, 2, 3, 4, ticket=ticket) == blocks
            with trio.fail_after(20):
                while not (counts := await reader.hear(KvCounts)).transfers:
                    pass
                assert counts.transfers == {"shm": 1}
                while (counts := await owner.hear(KvCounts)).leases or not counts.leases_granted:
                    pass  # it is given back


async def test_what_was_on_the_disk_is_found_after_a_kill(tmp_path: Path):
    disk = tmp_path / "disk"
    with open_links() as links:
        async with open_connector(links, tmp_path, epoch=1, disk=disk) as first:
            await first.save(1, 2, 3)
            await first.until_on_disk(3)
            first.process.kill()
        async with open_connector(links, tmp_path, epoch=2, disk=disk) as second:
            assert await second.find(1, 2, 3, 4) == [block_bytes(one) for one in names(1, 2, 3)]


async def test_a_connector_that_is_asked_to_leave_writes_what_it_has(tmp_path: Path):
    disk = tmp_path / "disk"
    with open_links() as links:
        async with open_connector(links, tmp_path, epoch=1, disk=disk) as first:
            assert await first.find(4) == []  # its disk is open
            await first.save(1, 2, 3)
            await first.find(1)  # it has heard that
        async with open_connector(links, tmp_path, epoch=2, disk=disk) as second:
            await second.until_on_disk(3)
