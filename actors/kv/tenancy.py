"""One window and what goes on around it: for one incarnation of the engine after the other, as long as their layouts
are equal. Used by actors/kv/main.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, final

import trio

from actors.kv.connector import Connector, num_granted_of
from actors.kv.counters import Counters
from actors.kv.disk import Disk
from actors.kv.disk_desk import InThread, OpenFile, in_thread
from actors.kv.disk_file import DiskFile
from actors.kv.fetching import Fetching
from actors.kv.finds import Finds
from actors.kv.frames import Frames
from actors.kv.leases import Leases
from actors.kv.lending import LeaseId, OpenPeers, Peers
from actors.kv.memory_ahead import MemoryAhead
from actors.kv.no_disk import NoDisk
from actors.kv.window import Window
from protocol.errors import StartError
from protocol.ids import Epoch
from protocol.kv import FindId, KvCounts, KvInput, KvLayout, KvOutput
from protocol.links import Outbox
from protocol.spec import KvSpec

LEAST_FRAMES = 64
COUNT_SECONDS = 1.0

logger = logging.getLogger("trillm.kv")


class ClosableOutbox(Outbox[KvOutput], Protocol):
    def close(self) -> None: ...


def make_window(spec: KvSpec, layout: KvLayout) -> Window:
    """As large as it may be. Raises StartError."""
    num_frames = spec.window_bytes // layout.frame_bytes if layout.frame_bytes else 0
    if num_frames < LEAST_FRAMES:
        raise StartError(
            f"the KV connector of engine {spec.engine_index} has {spec.window_bytes} bytes of memory, and needs "
            f"{LEAST_FRAMES * layout.frame_bytes} or more: a block of this model takes {layout.frame_bytes} bytes. "
            "Raise --kv-offloading-size, which all engines share"
        )
    try:
        return Window(layout, num_frames, spec.engine_index)
    except OSError as error:
        raise StartError(
            f"the KV connector of engine {spec.engine_index} cannot have {spec.window_bytes} bytes of memory: {error}. "
            "Lower --kv-offloading-size, which all engines share"
        ) from error


@final
class Tenancy:
    """Of one window."""

    def __init__(
        self,
        spec: KvSpec,
        window: Window,
        counters: Counters,
        open_peers: OpenPeers,
        open_file: OpenFile = DiskFile,
        in_thread: InThread = in_thread,
    ) -> None:
        self.window = window
        self._spec = spec
        self._open_peers = open_peers
        self._peers: Peers | None = None
        self._counters = counters
        self._frames = Frames(window.num_frames)
        self.leases = Leases(
            self._frames,
            spec.lease_seconds,
            trio.current_time,
            most_frames=window.num_frames - 2 * num_granted_of(window.num_frames),
        )
        self._disk = (
            None
            if spec.disk_path is None
            else Disk(Path(spec.disk_path), spec.disk_bytes, window, self._frames, open_file, in_thread)
        )
        disk = self._disk or NoDisk()
        self._fetching = Fetching(self._frames)
        self._finds = Finds(self._frames, disk, self._fetching, counters, self._answer, trio.current_time)
        self._connector = Connector(
            spec.epoch, self._frames, self.leases, self._finds, disk, counters, self._give_ticket, self._say
        )
        self._engine: Epoch | None = None
        self._outbox: ClosableOutbox | None = None
        self._nursery: trio.Nursery | None = None
        self._news = trio.Event()
        self._is_over = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until `end`. What is still to be written to the disk gets a moment then. Raises StartError."""
        try:
            async with (
                self._open_peers(self._spec, self.window, self.leases) as self._peers,
                trio.open_nursery() as self._nursery,
            ):
                await self._nursery.start(self._fetching.run, self._peers, self._finds)
                if self._disk is not None:
                    self._nursery.start_soon(self._disk.run, self._finds)
                self._nursery.start_soon(self._keep_time)
                self._nursery.start_soon(self._keep_counting)
                self._nursery.start_soon(MemoryAhead(self.window).keep, lambda: self._frames.num_begun, self._hear_news)
                task_status.started()
        finally:
            self.engine_went()
            self.leases.end_all()
            self._is_over.set()

    async def end(self) -> None:
        assert self._nursery is not None, "it has begun"
        self.engine_went()  # what it may still have said begins nothing more
        self._nursery.cancel_scope.cancel()
        await self._is_over.wait()

    # ------------------------------------------------------------------ the engine

    def engine_came(self, epoch: Epoch, outbox: ClosableOutbox) -> None:
        self.engine_went()
        self._engine, self._outbox = epoch, outbox
        self._connector.engine_came(epoch)

    def engine_went(self, epoch: Epoch | None = None) -> None:
        """Unless another one than that of `epoch` is here."""
        if self._engine is not None and epoch in (None, self._engine):
            self._connector.engine_went()
            self._engine = None
            if self._outbox is not None:
                self._outbox.close()
                self._outbox = None

    def hear(self, messages: Sequence[KvInput]) -> None:
        for message in messages:
            self._connector.hear(message)
        self._news.set()

    def _answer(self, find_id: FindId, frames: list[int], error: str | None) -> None:
        self._connector.answer(find_id, frames, error)

    def _give_ticket(self, lease_id: LeaseId, num_blocks: int) -> bytes:
        assert self._peers is not None, "it has begun"
        return self._peers.ticket(lease_id, num_blocks, self._spec.lease_seconds)

    def _say(self, message: KvOutput) -> None:
        if self._outbox is not None:
            self._outbox.send_nowait(message)

    # ------------------------------------------------------------------ time

    async def _keep_time(self) -> None:
        while True:
            with trio.move_on_at(self._connector.next_deadline):
                await self._news.wait()
                self._news = trio.Event()
            self._connector.tick()

    async def _hear_news(self) -> None:
        await self._news.wait()

    async def _keep_counting(self) -> None:
        while True:
            if self._engine is not None:
                self._say(self.counts(self._engine))
            await trio.sleep(COUNT_SECONDS)
            self._connector.tick()  # leases may have been given back, and frames with them

    @property
    def num_disk_failures(self) -> int:
        return 0 if self._disk is None else self._disk.num_failures

    def counts(self, engine: Epoch) -> KvCounts:
        counters, disk = self._counters, self._disk
        failures = counters.failures + Counter(disk=self.num_disk_failures)
        return KvCounts(
            epoch=engine,
            kv_epoch=self._spec.epoch,
            frames=self._frames.counts(),
            disk_blocks=0 if disk is None else disk.num_blocks,
            disk_bytes=0 if disk is None else disk.num_bytes,
            leases=len(self.leases),
            queried_blocks=dict(counters.queried),
            found_blocks=dict(counters.found),
            saved_blocks=counters.saved,
            transfers=dict(counters.transfers),
            transfer_bytes=dict(counters.transfer_bytes),
            transfer_seconds=dict(counters.transfer_seconds),
            failures=dict(failures),
            leases_granted=counters.leases_granted + self.leases.num_granted,
            leases_expired=counters.leases_expired + self.leases.num_expired,
        )
