"""Which slot of the disk's file has which block, and which is overwritten next. Pure; used by actors/kv/disk.

The file lies beside it (actors/kv/disk_file): nothing here is believed of a slot's bytes before their checksum was
compared. How recently a block was used is kept as a stamp that grows, so that it outlives us.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple, final

from protocol.kv import BlockHash


class SlotRecord(NamedTuple):
    """What the index file says of one slot."""

    slot: int
    block_hash: BlockHash
    checksum: int
    stamp: int


@final
class DiskIndex:
    """Of one layout's file with room for `num_slots` blocks."""

    def __init__(self, num_slots: int, records: Iterable[SlotRecord] = ()) -> None:
        self.num_slots = num_slots
        self._stamp = 0
        self._records: OrderedDict[BlockHash, SlotRecord] = OrderedDict()
        """The longest unused first."""
        self._free: list[int] = []
        self._end = 0
        """Slots from here on have never been used."""
        self._busy: dict[BlockHash, int] = {}
        """How many read it just now."""
        self._dirty: dict[BlockHash, None] = {}
        """Their stamps have changed since they were written down."""
        self._lost: dict[int, None] = {}
        """Slots whose records are to be erased."""
        taken: set[int] = set()
        for record in sorted(records, key=lambda record: record.stamp):
            self._stamp = max(self._stamp, record.stamp)
            if record.slot >= num_slots or record.slot in taken:
                continue
            if (older := self._records.pop(record.block_hash, None)) is not None:
                taken.discard(older.slot)
                self._lost[older.slot] = None
            taken.add(record.slot)
            self._records[record.block_hash] = record
        self._end = max(taken, default=-1) + 1
        self._free = [slot for slot in range(self._end - 1, -1, -1) if slot not in taken]

    def __len__(self) -> int:
        """Blocks."""
        return len(self._records)

    @property
    def end(self) -> int:
        """Slots before this one may have been written: what the file is as long as."""
        return self._end

    def __contains__(self, block_hash: BlockHash) -> bool:
        return block_hash in self._records

    def touch(self, block_hash: BlockHash) -> None:
        """It was of use, from wherever it was had."""
        if (record := self._records.get(block_hash)) is not None:
            self._records[block_hash] = record._replace(stamp=self._next_stamp())
            self._records.move_to_end(block_hash)
            self._dirty[block_hash] = None

    # ------------------------------------------------------------------ reading

    def begin_read(self, block_hash: BlockHash) -> SlotRecord | None:
        """Its slot is not overwritten until `end_read`, which every one of these needs."""
        if (record := self._records.get(block_hash)) is not None:
            self._busy[block_hash] = self._busy.get(block_hash, 0) + 1
        return record

    def end_read(self, record: SlotRecord, *, is_sound: bool) -> None:
        """What was read is what was written, or not: then it is forgotten."""
        block_hash = record.block_hash
        if left := self._busy.get(block_hash, 1) - 1:
            self._busy[block_hash] = left
        else:
            self._busy.pop(block_hash, None)
        now = self._records.get(block_hash)
        if now is None or now.slot != record.slot:
            return  # forgotten meanwhile
        if is_sound:
            self.touch(block_hash)
        else:
            self.forget(block_hash)

    def forget(self, block_hash: BlockHash) -> None:
        record = self._records.pop(block_hash)
        self._dirty.pop(block_hash, None)
        self._lost[record.slot] = None
        self._free.append(record.slot)

    # ------------------------------------------------------------------ writing

    def begin_write(self, block_hash: BlockHash) -> int | None:
        """A slot for it, which has nothing from now on. None if all are being read."""
        slot = self._slot_for(block_hash)
        if slot is not None:
            self._lost.pop(slot, None)  # whoever writes to it begins with its record
        return slot

    def _slot_for(self, block_hash: BlockHash) -> int | None:
        if block_hash in self._records:
            if block_hash in self._busy:
                return None
            return self._give_up(block_hash)
        if self._free:
            return self._free.pop()
        if self._end < self.num_slots:
            self._end += 1
            return self._end - 1
        victim = next((one for one in self._records if one not in self._busy), None)
        return None if victim is None else self._give_up(victim)

    def end_write(self, slot: int, block_hash: BlockHash, checksum: int, stamp: int) -> None:
        """The slot has it."""
        if (older := self._records.pop(block_hash, None)) is not None:
            self._lost[older.slot] = None
            self._free.append(older.slot)
        self._records[block_hash] = SlotRecord(slot, block_hash, checksum, stamp)

    def fail_write(self, slot: int) -> None:
        """The slot has nothing."""
        self._free.append(slot)
        self._lost[slot] = None

    def next_stamp(self) -> int:
        """For what is about to be written."""
        return self._next_stamp()

    def take_changes(self) -> tuple[list[SlotRecord], list[int]]:
        """To be written down before anything that begins to be written later: records whose stamps have changed, and
        slots whose records are to be erased."""
        changed = [self._records[block_hash] for block_hash in self._dirty]
        self._dirty.clear()
        lost = list(self._lost)
        self._lost.clear()
        return changed, lost

    @property
    def has_changes(self) -> bool:
        return bool(self._dirty or self._lost)

    def _give_up(self, block_hash: BlockHash) -> int:
        self._dirty.pop(block_hash, None)
        return self._records.pop(block_hash).slot

    def _next_stamp(self) -> int:
        self._stamp += 1
        return self._stamp

    def __repr__(self) -> str:
        return f"<DiskIndex {len(self)} blocks in {self._end} of {self.num_slots} slots>"
