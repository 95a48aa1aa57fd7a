"""A KV connector's main over memory channels, in virtual time: an engine that keeps protocol/kv, peers that do as they
are told, and a disk whose threads are tasks. What a test must not see (a frame granted twice, or changed while it is
pinned) the engine here finds out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import trio
import trio.testing

from actors.control import Pulse
from actors.kv.disk_desk import InThread
from actors.kv.disk_file import DiskFile, Writing, Written
from actors.kv.disk_index import SlotRecord
from actors.kv.lending import Fetched, FetchError, LeaseId, Lender
from actors.kv.main import KvActor
from actors.kv.window import Window
from protocol.ids import EngineIndex, Epoch
from protocol.kv import (
    BlockHash,
    ExportId,
    FindId,
    KvCounts,
    KvDecline,
    KvExport,
    KvExported,
    KvFind,
    KvFound,
    KvInput,
    KvLayout,
    KvLeave,
    KvOutput,
    KvReset,
    KvResetDone,
    KvRoom,
    KvSaved,
    KvUsed,
)
from protocol.spec import KvEngine, KvFacts, KvSpec

T = TypeVar("T")

KV_EPOCH = Epoch(7)
FRAME_BYTES = 128
NUM_FRAMES = 64
LAYOUT = KvLayout(b"d" * 32, 16, [FRAME_BYTES])
SECONDS = 5.0


def kv_spec(disk: Path | None = None, num_frames: int = NUM_FRAMES, disk_bytes: int = 1 << 20) -> KvSpec:
    return KvSpec(
        engine_index=EngineIndex(0),
        epoch=KV_EPOCH,
        inbox_address="ipc://kv",
        engine_id="engine",
        key=b"k" * 32,
        window_bytes=num_frames * FRAME_BYTES,
        disk_path=None if disk is None else str(disk),
        disk_bytes=disk_bytes,
    )


def block_name(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(32))


def names(*numbers: int) -> list[BlockHash]:
    return [block_name(number) for number in numbers]


def block_bytes(block_hash: BlockHash, size: int = FRAME_BYTES) -> bytes:
    """What a block holds: every engine computes the same for it."""
    return (block_hash * (size // len(block_hash) + 1))[:size]


# ------------------------------------------------------------------ the disk


async def inline(act: Callable[[], T], limiter: trio.CapacityLimiter) -> T:
    """No threads: virtual time does not wait for them."""
    async with limiter:
        await trio.lowlevel.checkpoint()
        return act()


class Gate:
    """An InThread through which nothing gets while it is closed: a disk that hangs."""

    def __init__(self) -> None:
        self._open = trio.Event()
        self._open.set()
        self.num_waiting = 0

    def close(self) -> None:
        self._open = trio.Event()

    def open(self) -> None:
        self._open.set()

    async def __call__(self, act: Callable[[], T], limiter: trio.CapacityLimiter) -> T:
        async with limiter:
            self.num_waiting += 1
            try:
                await self._open.wait()
            finally:
                self.num_waiting -= 1
            return act()


class FaultyFile(DiskFile):
    """Real files, whose reads and writes fail as often as there are errors to raise."""

    def __init__(self, directory: Path, layout: KvLayout, errors: deque[OSError], read_errors: deque[OSError]) -> None:
        super().__init__(directory, layout)
        self._errors = errors
        self._read_errors = read_errors

    def write(self, blocks: Sequence[Writing]) -> Written:
        if self._errors:
            return Written([], self._errors.popleft())
        return super().write(blocks)

    def read(self, record: SlotRecord, into: memoryview) -> bool:
        if self._read_errors:
            raise self._read_errors.popleft()
        return super().read(record, into)


# ------------------------------------------------------------------ peers


class FakePeers:
    """Fulfils actors.kv.lending.Peers. A ticket has the blocks that are put into `lent` for it, and `fetch` gives them
    once `arrive` is set."""

    def __init__(self) -> None:
        self.lent: dict[bytes, list[BlockHash]] = {}
        self.error: FetchError | None = None
        self.arrive = trio.Event()
        self.arrive.set()
        self.asked: list[list[BlockHash]] = []
        self.declined: list[bytes] = []
        """Tickets that were fetched nothing with, which gives their leases back."""
        self.takes_back = trio.Event()
        self.takes_back.set()
        self.num_fetching = 0
        self.writes_late = False
        """Cancelled, it still writes until `settle` is called."""
        self.settle: list[Callable[[], None]] = []
        self.may_leave = trio.Event()
        self.may_leave.set()
        self.lender: Lender | None = None
        self.window: Window | None = None
        self.tickets: dict[bytes, LeaseId] = {}

    @asynccontextmanager
    async def open(self, spec: KvSpec, window: Window, lender: Lender) -> AsyncIterator[FakePeers]:
        self.window, self.lender = window, lender
        yield self
        await self.may_leave.wait()

    def ticket(self, lease_id: LeaseId, num_blocks: int, seconds: float) -> bytes:
        ticket = b"ticket-%d" % len(self.tickets)
        self.tickets[ticket] = lease_id
        return ticket

    async def fetch(
        self,
        ticket: bytes,
        hashes: Sequence[BlockHash],
        take: Callable[[int], list[int]],
        quarantine: Callable[[Sequence[int]], Callable[[], None]],
    ) -> Fetched:
        if not hashes:
            self.declined.append(ticket)
            await self.takes_back.wait()
            return Fetched(0, 0, "", 0.1)
        self.asked.append(list(hashes))
        self.num_fetching += 1
        lent = self.lent.get(ticket, [])
        wanted = [one for one in hashes if one in lent]
        frames = take(len(wanted))
        done = False
        try:
            await self.arrive.wait()
            if self.error is not None:
                raise self.error
            for block_hash, frame in zip(wanted, frames, strict=False):
                self.write(frame, block_bytes(block_hash))
            done = True
        finally:
            self.num_fetching -= 1
            if not done and self.writes_late and frames:
                release = quarantine(frames)

                def settle() -> None:
                    for frame in frames:
                        self.write(frame, b"\xbb" * FRAME_BYTES)
                    release()

                self.settle.append(settle)
        return Fetched(len(frames), len(frames) * FRAME_BYTES, "fake", 0.1)

    def write(self, frame: int, data: bytes) -> None:
        assert self.window is not None
        self.window.frame(frame)[:] = data


# ------------------------------------------------------------------ the engine


class MemoryOutbox:
    """The connector's way to one engine."""

    def __init__(self, hear: Callable[[KvOutput], None]) -> None:
        self._hear = hear
        self.is_closed = False

    def send_nowait(self, value: KvOutput) -> None:
        if self.is_closed:
            raise trio.ClosedResourceError
        self._hear(value)

    def close(self) -> None:
        self.is_closed = True


class FakeEngine:
    """One incarnation. Writes only to granted frames, and looks whether found ones hold what they should."""

    def __init__(self, house: KvHouse, epoch: Epoch, layout: KvLayout) -> None:
        self._house = house
        self.epoch = epoch
        self.layout = layout
        self.facts: KvFacts | None = None
        self.granted: list[int] = []
        self.found: dict[FindId, KvFound] = {}
        self.exported: dict[ExportId, KvExported] = {}
        self.resets: list[int] = []
        self.counts: list[KvCounts] = []
        self._asked: dict[FindId, list[BlockHash]] = {}

    def hear(self, message: KvOutput) -> None:
        assert (message.epoch, message.kv_epoch) == (self.epoch, KV_EPOCH)
        match message:
            case KvRoom(frames=frames):
                in_use = {frame for found in self.found.values() for frame in found.frames}
                assert not set(frames) & set(self.granted), "granted twice"
                assert not set(frames) & in_use, "granted while they are to be read"
                self.granted += frames
            case KvFound(find_id=find_id):
                assert find_id not in self.found, "answered twice"
                if find_id in self._asked:  # else it was left when this was on its way
                    self.found[find_id] = message
                    self.look_at(find_id)
            case KvExported(export_id=export_id):
                self.exported[export_id] = message
            case KvResetDone(call_id=call_id):
                self.resets.append(call_id)
            case KvCounts():
                self.counts.append(message)

    def look_at(self, find_id: FindId) -> None:
        """What was found is what it should be, now."""
        for frame, block_hash in zip(self.found[find_id].frames, self._asked[find_id], strict=False):
            assert self.read(frame) == block_bytes(block_hash), f"frame {frame} is not what was found in it"

    def read(self, frame: int) -> bytes:
        return bytes(self._house.window.frame(frame))

    def find(self, number: int, hashes: list[BlockHash], ticket: bytes = b"", seconds: float = SECONDS) -> FindId:
        find_id = FindId(number)
        self._asked[find_id] = hashes
        self._house.say(KvFind(self.epoch, find_id, hashes, ticket, seconds))
        return find_id

    def decline(self, ticket: bytes) -> None:
        self._house.say(KvDecline(self.epoch, ticket))

    def leave(self, *find_ids: int) -> None:
        for find_id in map(FindId, find_ids):
            if find_id in self.found:
                self.look_at(find_id)
                del self.found[find_id]
            self._asked.pop(find_id, None)
        self._house.say(KvLeave(self.epoch, [FindId(one) for one in find_ids]))

    def save(self, hashes: list[BlockHash]) -> list[int]:
        """As many as there is room for; the frames."""
        frames = [self.granted.pop(0) for _ in hashes[: len(self.granted)]]
        for frame, block_hash in zip(frames, hashes, strict=False):
            self._house.window.frame(frame)[:] = block_bytes(block_hash)
        self._house.say(KvSaved(self.epoch, frames, list(hashes[: len(frames)])))
        return frames

    def used(self, hashes: list[BlockHash]) -> None:
        self._house.say(KvUsed(self.epoch, hashes))

    def give_back(self, num_frames: int) -> None:
        frames = [self.granted.pop(0) for _ in range(num_frames)]
        self._house.say(KvSaved(self.epoch, frames, [None] * num_frames))

    def export(self, number: int, hashes: list[BlockHash]) -> None:
        self._house.say(KvExport(self.epoch, ExportId(number), hashes))

    def reset(self, call_id: int) -> None:
        self._house.say(KvReset(self.epoch, call_id))

    async def frames_found(self, number: int) -> list[int]:
        """Of the answer, once it is here."""
        with trio.fail_after(100):
            while FindId(number) not in self.found:
                await trio.sleep(0.01)
        return self.found[FindId(number)].frames

    async def num_found(self, *numbers: int, ticket: bytes = b"") -> int:
        """How many of these blocks are found. Leaves again."""
        find_id = self.find(1000 + len(self._asked) + len(self._house.said), names(*numbers), ticket)
        frames = await self.frames_found(find_id)
        self.leave(find_id)
        return len(frames)


class KvHouse:
    """Made by `open_kv_house`."""

    def __init__(self, spec: KvSpec) -> None:
        self.spec = spec
        self.peers = FakePeers()
        self.ready: list[KvFacts] = []
        self.said: list[KvInput] = []
        self.engines: dict[str, FakeEngine] = {}
        self._epoch = 100
        self._say, self.inbox = trio.open_memory_channel[KvInput](math.inf)
        self._tell, self.told = trio.open_memory_channel[KvEngine](math.inf)
        self.actor: KvActor | None = None

    @property
    def window(self) -> Window:
        assert self.peers.window is not None
        return self.peers.window

    def say(self, message: KvInput) -> None:
        self.said.append(message)
        self._say.send_nowait(message)

    def connect(self, address: str) -> MemoryOutbox:
        return MemoryOutbox(self.engines[address].hear)

    async def hear_ready(self, facts: KvFacts) -> None:
        await trio.lowlevel.checkpoint()
        self.ready.append(facts)

    async def start_engine(self, layout: KvLayout = LAYOUT) -> FakeEngine:
        num_ready = len(self.ready)
        engine = self.tell_of_engine(layout)
        with trio.fail_after(100):
            while len(self.ready) == num_ready:
                await trio.sleep(0.01)
        engine.facts = self.ready[-1]
        assert engine.facts.engine_epoch == engine.epoch
        return engine

    def tell_of_engine(self, layout: KvLayout = LAYOUT) -> FakeEngine:
        self._epoch += 1
        engine = FakeEngine(self, Epoch(self._epoch), layout)
        address = f"ipc://e{self._epoch}"
        self.engines[address] = engine
        self._tell.send_nowait(KvEngine(engine.epoch, address, layout))
        return engine

    async def end_engine(self, engine: FakeEngine) -> None:
        self._tell.send_nowait(KvEngine(engine.epoch))
        await trio.testing.wait_all_tasks_blocked()


@asynccontextmanager
async def open_kv_house(
    spec: KvSpec | None = None,
    *,
    open_file: Callable[[Path, KvLayout], DiskFile] = DiskFile,
    in_thread: InThread = inline,
) -> AsyncIterator[KvHouse]:
    """A connector that runs. Leaving the body is SIGTERM."""
    house = KvHouse(spec or kv_spec())
    house.actor = KvActor(
        house.spec, house.connect, house.hear_ready, Pulse(), house.peers.open, open_file=open_file, in_thread=in_thread
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(house.actor.run, house.inbox, house.told)
        yield house
        nursery.cancel_scope.cancel()


def assert_all_is_left(house: KvHouse, engine: FakeEngine) -> None:
    """No pin, no import, no fetch is left: every frame is the engine's to write, or can be had for it."""
    counts = engine.counts[-1]
    assert counts.frames["importing"] == counts.frames["exported"] == counts.frames["quarantined"] == 0, counts
    assert counts.frames["granted"] == len(engine.granted)
    assert sum(counts.frames.values()) == NUM_FRAMES
    assert house.peers.num_fetching == 0
    assert engine.found == {}
