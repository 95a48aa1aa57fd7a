"""A KV connector in memory that keeps protocol/kv to the letter, and finds out an engine that does not; and a bench
whose scheduler has one. It answers when a test tells it to: late, with less than there is, twice, or never.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from actors.engine.scheduler_config import SchedulerConfig
from actors.kv.window import Window
from protocol.ids import Epoch
from protocol.kv import (
    BlockHash,
    FindId,
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
from protocol.step import StepPlan
from tests.helpers.scheduling import Bench

ENGINE_EPOCH = Epoch(1)
TICKET = b"ticket-"


class MemoryConnector:
    """With `disk`, blocks are found that another connector had. What it says is in `said`, for the test to deliver."""

    def __init__(
        self,
        layout: KvLayout,
        num_frames: int = 16,
        kv_epoch: int = 1,
        disk: dict[BlockHash, bytes] | None = None,
        epoch: Epoch = ENGINE_EPOCH,
    ) -> None:
        self.window = Window(layout, num_frames)
        self.epoch = epoch
        self.kv_epoch = Epoch(kv_epoch)
        self.disk = {} if disk is None else disk
        self.said: list[KvOutput] = []
        self.granted: set[int] = set()
        self.held: dict[BlockHash, int] = {}
        """The one that was used longest ago first."""
        self.contents: dict[int, bytes] = {}
        """What lies in frames that hold a block: nobody is to change it."""
        self.free = list(range(num_frames))
        self.pins: Counter[int] = Counter()
        self.asked: dict[FindId, KvFind] = {}
        """Not answered yet."""
        self.found: dict[FindId, list[int]] = {}
        """Not left yet."""
        self.find_ids: set[FindId] = set()
        self.exports: list[KvExport] = []
        """Not answered yet."""
        self.tickets: dict[bytes, list[BlockHash]] = {}
        self.num_saved = 0
        self.declined: list[bytes] = []
        self.used: list[list[BlockHash]] = []

    # ------------------------------------------------------------------ what the engine says

    def hear(self, message: KvInput) -> None:
        assert message.epoch == self.epoch
        match message:
            case KvFind():
                assert message.find_id not in self.find_ids, "a find has the number of an earlier one"
                assert message.hashes, "nothing is looked for"
                self.find_ids.add(message.find_id)
                self.asked[message.find_id] = message
            case KvLeave():
                for find_id in message.find_ids:
                    assert find_id in self.find_ids, "nobody has asked for what is left"
                    self.asked.pop(find_id, None)
                    self.pins.subtract(self.found.pop(find_id, []))
            case KvDecline():
                self.declined.append(message.ticket)
            case KvSaved():
                assert len(set(message.frames)) == len(message.frames) == len(message.hashes) > 0
                for frame, block_hash in zip(message.frames, message.hashes, strict=True):
                    self._save(frame, block_hash)
            case KvUsed():
                assert message.hashes
                self.used.append(message.hashes)
            case KvExport():
                assert message.hashes
                self.exports.append(message)
            case KvReset():
                self.disk.clear()
                for block_hash in list(self.held):
                    if not self.pins[self.held[block_hash]]:
                        self._give_up(block_hash)
                self.said.append(KvResetDone(self.epoch, self.kv_epoch, message.call_id))

    def _save(self, frame: int, block_hash: BlockHash | None) -> None:
        assert frame in self.granted, f"frame {frame} was written and not granted"
        self.granted.remove(frame)
        if block_hash is None or block_hash in self.held:
            self.free.append(frame)
            return
        self.num_saved += 1
        content = bytes(self.window.frame(frame))
        assert self.disk.setdefault(block_hash, content) == content, "one hash has two contents"
        self._hold(frame, block_hash)

    # ------------------------------------------------------------------ what it says

    def grant(self, count: int = 4) -> None:
        frames = self._take(count)
        self.granted.update(frames)
        if frames:
            self.said.append(KvRoom(self.epoch, self.kv_epoch, frames))

    def answer_find(self, find_id: FindId, most: int | None = None, error: str | None = None) -> KvFound:
        find = self.asked.pop(find_id)
        frames: list[int] = []
        for block_hash in find.hashes[:most]:
            if block_hash not in self.held and block_hash in self.disk and (taken := self._take(1)):
                self.window.frame(taken[0])[:] = self.disk[block_hash]
                self._hold(taken[0], block_hash)
            if block_hash not in self.held:
                break
            frame = self.held[block_hash] = self.held.pop(block_hash)
            self.pins[frame] += 1
            frames.append(frame)
        self.found[find_id] = frames
        answer = KvFound(self.epoch, self.kv_epoch, find_id, frames, error)
        self.said.append(answer)
        return answer

    def answer_export(self, most: int | None = None) -> bytes:
        """The oldest one. Returns its ticket."""
        export = self.exports.pop(0)
        kept = []
        for block_hash in export.hashes[:most]:
            if block_hash not in self.held and block_hash not in self.disk:
                break
            kept.append(block_hash)
        ticket = TICKET + str(len(self.tickets)).encode() if kept else b""
        if kept:
            self.tickets[ticket] = kept
        self.said.append(KvExported(self.epoch, self.kv_epoch, export.export_id, ticket, len(kept)))
        return ticket

    def answer_all(self) -> None:
        """Everything that was asked, as well as it can, and room for what comes next."""
        for find_id in list(self.asked):
            self.answer_find(find_id)
        while self.exports:
            self.answer_export()
        if len(self.granted) < 4:
            self.grant(4)

    # ------------------------------------------------------------------ frames

    @property
    def num_free(self) -> int:
        """Frames that neither the engine has, nor a block."""
        return len(self.free)

    def check(self) -> None:
        """Nobody has written where nobody was to write."""
        for frame, content in self.contents.items():
            assert bytes(self.window.frame(frame)) == content, f"frame {frame} holds a block and was written"
        assert min(self.pins.values(), default=0) >= 0

    def _take(self, count: int) -> list[int]:
        for block_hash in list(self.held):
            if len(self.free) >= count:
                break
            if not self.pins[self.held[block_hash]]:
                self._give_up(block_hash)
        taken, self.free = self.free[:count], self.free[count:]
        return taken

    def _hold(self, frame: int, block_hash: BlockHash) -> None:
        self.held[block_hash] = frame
        self.contents[frame] = bytes(self.window.frame(frame))

    def _give_up(self, block_hash: BlockHash) -> None:
        frame = self.held.pop(block_hash)
        assert bytes(self.window.frame(frame)) == self.contents.pop(frame), f"frame {frame} was written"
        self.window.frame(frame)[:] = bytes(self.window.frame_bytes)  # so that whoever reads it now is found out
        self.free.append(frame)

    def close(self) -> None:
        self.window.close()


class KvBench(Bench):
    """A bench whose scheduler has a connector, which hears at once and answers when it is told to, or with `answers`
    at once."""

    def __init__(
        self,
        checkpoint: Path,
        config: SchedulerConfig,
        *,
        num_frames: int = 16,
        disk: dict[BlockHash, bytes] | None = None,
        answers: bool = True,
        connects: bool = True,
        **more: object,
    ) -> None:
        super().__init__(checkpoint, config, **more)
        self.now = 0.0
        self.answers = answers
        self.num_frames = num_frames
        self.disk = {} if disk is None else disk
        self.connector: MemoryConnector | None = None
        self.num_connectors = 0
        if connects:
            self.connect()

    @property
    def layout(self) -> KvLayout:
        layout = self.runner.facts.kv_layout
        assert layout is not None
        return layout

    def connect(self) -> MemoryConnector:
        """No plan may be in flight that is not computed."""
        self.num_connectors += 1
        self.connector = MemoryConnector(
            self.layout, self.num_frames, self.num_connectors, self.disk, self.scheduler.kv.epoch
        )
        self.runner.attach_frames(self.connector.window.described())
        self.scheduler.kv.connect(self.connector.kv_epoch, self.num_frames)
        self.talk()
        return self.connector

    def lose(self) -> None:
        """The connector dies."""
        assert self.connector is not None
        self.take(self.scheduler.lose_connector())
        self.runner.attach_frames(None)
        self.connector.close()
        self.connector = None

    def talk(self) -> None:
        """Both hear what the other has said."""
        connector = self.connector
        messages = self.scheduler.kv.take_messages()
        if connector is None:
            assert not messages
            return
        for message in messages:
            connector.hear(message)
        if self.answers:
            connector.answer_all()
        said, connector.said = connector.said, []
        for message in said:
            self.take(self.scheduler.hear_connector(message))
        if said:
            self.talk()

    def attend(self) -> None:
        self.take(self.scheduler.attend_connector(self.now))
        self.talk()

    def schedule(self, now: float | None = None) -> StepPlan | None:
        self.attend()
        plan = super().schedule(self.now if now is None else now)
        self.talk()
        return plan

    def commit(self, plan, result) -> None:
        super().commit(plan, result)
        self.talk()

    def settle(self) -> None:
        """Run until nothing is left to do, and everything that was pinned is left."""
        self.run()
        self.attend()
        if self.connector is not None:
            self.connector.check()
            assert not self.connector.asked
            assert not self.connector.found
