"""Connectors that speak with each other, without engines: windows with known contents, a lender that does as it is
told, and pairs of them. Run as a program, it is an owner in a process of its own (`owner_process`)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from array import array
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import trio

from actors.kv.lending import Fetched, LeaseId, Lent
from actors.kv.peers import OtherConnectors, open_peers
from actors.kv.window import Window
from protocol.ids import EngineIndex, Epoch
from protocol.kv import BlockHash, KvLayout
from protocol.spec import KvSpec

KEY = b"k" * 32
LEASE = LeaseId("lease")
UNTOUCHED = b"\xee"
"""What fills the frames of a reader."""


def layout(frame_bytes: int = 256, digest: bytes = b"d" * 32) -> KvLayout:
    return KvLayout(digest, 16, [frame_bytes])


def block_hash(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(32))


def contents(number: int, size: int) -> bytes:
    """Of a block: every 8 bytes of it differ from all others."""
    return array("Q", range(number << 32, (number << 32) + size // 8)).tobytes()


def spec(**changes) -> KvSpec:
    given = {"engine_index": EngineIndex(0), "epoch": Epoch(1), "inbox_address": "", "engine_id": "engine", "key": KEY}
    return KvSpec(**given | {"window_bytes": 1 << 20} | changes)


class FakeLender:
    """Fulfils actors.kv.lending.Lender. One lease, which never expires by itself."""

    def __init__(self, lent: Sequence[Lent] = ()) -> None:
        self.lent: list[Lent] | None = list(lent)
        self._all = set(lent)
        self.borrowed = self.extended = self.left = 0
        self.given_back = trio.Event()

    def expire(self) -> None:
        self.lent = None

    def borrow(self, lease_id: LeaseId) -> list[Lent] | None:
        if lease_id != LEASE or self.lent is None:
            return None
        self.borrowed += 1
        return list(self.lent)

    def extend(self, lease_id: LeaseId) -> None:
        assert lease_id == LEASE
        self.extended += 1

    def confirm(self, lease_id: LeaseId, lent: Sequence[Lent]) -> bool:
        return lease_id == LEASE and self.lent is not None and set(lent) <= self._all

    def give_back(self, lease_id: LeaseId) -> None:
        assert lease_id == LEASE
        self.given_back.set()

    def leave(self, lease_id: LeaseId) -> None:
        assert lease_id == LEASE
        self.left += 1


@contextlib.contextmanager
def open_window(num_frames: int, frame_bytes: int = 256, digest: bytes = b"d" * 32) -> Iterator[Window]:
    with Window(layout(frame_bytes, digest), num_frames) as window:
        for frame in range(num_frames):
            window.frame(frame)[:] = UNTOUCHED * window.frame_bytes
        yield window


def lend(window: Window, frames: Sequence[int]) -> FakeLender:
    """Blocks 0, 1, ... lie in these frames."""
    for number, frame in enumerate(frames):
        window.frame(frame)[:] = contents(number, window.frame_bytes)
    return FakeLender([Lent(block_hash(number), frame, 7) for number, frame in enumerate(frames)])


class Reader:
    """A connector that fetches: its window, and the frames that it gives, last first."""

    def __init__(self, window: Window, peers: OtherConnectors) -> None:
        self.window = window
        self.peers = peers
        self.free = list(range(window.num_frames))
        self.taken: list[int] = []
        self.quarantined: list[int] = []

    def take(self, count: int) -> list[int]:
        self.taken = [self.free.pop() for _ in range(min(count, len(self.free)))]
        return self.taken

    def quarantine(self, frames: Sequence[int]):
        self.quarantined += frames

        def release() -> None:
            for frame in frames:
                self.quarantined.remove(frame)

        return release

    async def fetch(self, ticket: bytes, num_blocks: int) -> Fetched:
        return await self.peers.fetch(ticket, [block_hash(n) for n in range(num_blocks)], self.take, self.quarantine)

    def is_written(self, frame: int) -> bool:
        return bytes(self.window.frame(frame)) != UNTOUCHED * self.window.frame_bytes

    def blocks(self) -> list[bytes]:
        return [bytes(self.window.frame(frame)) for frame in self.taken]


@contextlib.asynccontextmanager
async def open_reader(
    num_frames: int = 64, frame_bytes: int = 256, transports=None, transport_names=(), **changes
) -> AsyncIterator[Reader]:
    named = spec(engine_id="reader", transports=list(transport_names), **changes)
    with open_window(num_frames, frame_bytes) as window:
        async with open_peers(named, window, FakeLender(), transports) as peers:
            yield Reader(window, peers)


@contextlib.asynccontextmanager
async def open_owner(
    window: Window, lender: FakeLender, directory: Path | None = None, host: str | None = "127.0.0.1", **changes
) -> AsyncIterator[bytes]:
    """One that is heard there; the ticket for what it lends."""
    path = None if directory is None else str(directory / "kv.sock")
    async with open_peers(spec(peer_path=path, peer_host=host, **changes), window, lender) as peers:
        yield peers.ticket(LEASE, len(lender.lent or ()), 30.0)


def num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextlib.asynccontextmanager
async def owner_process(
    directory: Path, num_frames: int, frame_bytes: int
) -> AsyncIterator[tuple[trio.Process, bytes]]:
    """Lends all its frames, in order. Killed in the end, if it is still there."""
    command = [sys.executable, "-m", "tests.helpers.kv_peers", str(directory), str(num_frames), str(frame_bytes)]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    try:
        with trio.fail_after(30):
            ticket = await _line(process)
        yield process, bytes.fromhex(ticket.decode())
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
        await process.stdout.aclose()


async def _line(process: trio.Process) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        some = await process.stdout.receive_some()
        assert some, "the owner has ended"
        line += some
    return line.strip()


async def _own(directory: Path, num_frames: int, frame_bytes: int) -> None:
    with open_window(num_frames, frame_bytes) as window:
        transports = os.environ.get("TRANSPORTS", "").split()
        async with open_owner(window, lend(window, range(num_frames)), directory, transports=transports) as ticket:
            print(ticket.hex(), flush=True)
            await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(_own, Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
