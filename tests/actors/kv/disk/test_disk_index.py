from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from actors.kv.disk_index import DiskIndex, SlotRecord
from protocol.kv import BlockHash


def name(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(32))


def written(index: DiskIndex, number: int) -> int:
    slot = index.begin_write(name(number))
    assert slot is not None
    index.end_write(slot, name(number), 0, index.next_stamp())
    return slot


def test_the_longest_unused_block_is_overwritten():
    index = DiskIndex(2)
    written(index, 0)
    slot = written(index, 1)
    index.touch(name(0))

    assert written(index, 2) == slot
    assert (name(0) in index, name(1) in index) == (True, False)


def test_what_was_used_last_is_known_after_a_restart():
    index = DiskIndex(3)
    slots = [written(index, number) for number in range(3)]
    index.touch(name(0))
    (changed,), _ = index.take_changes()
    records = [changed, SlotRecord(slots[1], name(1), 0, 2), SlotRecord(slots[2], name(2), 0, 3)]

    again = DiskIndex(3, records)

    assert written(again, 9) == slots[1]
    assert again.next_stamp() > changed.stamp


def test_nothing_is_overwritten_that_is_being_read():
    index = DiskIndex(1)
    written(index, 0)
    first, second = index.begin_read(name(0)), index.begin_read(name(0))

    assert index.begin_write(name(1)) is None

    index.end_read(first, is_sound=True)
    assert index.begin_write(name(1)) is None

    index.end_read(second, is_sound=True)
    assert index.begin_write(name(1)) == 0


def test_a_block_that_is_not_what_was_written_is_forgotten_and_its_record_erased():
    index = DiskIndex(2)
    slot = written(index, 0)
    index.take_changes()
    index.end_read(index.begin_read(name(0)), is_sound=False)

    assert name(0) not in index
    assert index.take_changes() == ([], [slot])
    assert index.begin_write(name(1)) == slot


def test_slots_beyond_a_smaller_file_and_second_records_are_left_out():
    records = [
        SlotRecord(0, name(0), 0, 1),
        SlotRecord(1, name(1), 0, 2),
        SlotRecord(2, name(0), 0, 3),
        SlotRecord(7, name(7), 0, 4),
    ]
    index = DiskIndex(4, records)

    assert len(index) == 2
    assert index.begin_read(name(0)).slot == 2
    assert (name(7) in index, index.end) == (False, 3)
    assert index.begin_write(name(5)) == 0


NUM_SLOTS = 4
NUMBERS = st.integers(0, 6)


class DiskIndexMachine(RuleBasedStateMachine):
    """No slot has two blocks, none is written while it is read, and none is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.index = DiskIndex(NUM_SLOTS)
        self.content: dict[int, BlockHash] = {}
        self.writing: dict[int, BlockHash] = {}
        self.reading: list[SlotRecord] = []

    @rule(number=NUMBERS)
    def begin_write(self, number: int) -> None:
        if name(number) in self.writing.values():
            return  # one writer, whose batch has no block twice
        slot = self.index.begin_write(name(number))
        if slot is not None:
            assert slot not in self.writing
            assert slot not in {record.slot for record in self.reading if self.content.get(slot) == record.block_hash}
            self.content.pop(slot, None)
            self.writing[slot] = name(number)

    @rule(data=st.data(), is_done=st.booleans())
    def end_write(self, data: st.DataObject, is_done: bool) -> None:
        if self.writing:
            slot = data.draw(st.sampled_from(sorted(self.writing)))
            block_hash = self.writing.pop(slot)
            if is_done:
                self.index.end_write(slot, block_hash, 0, self.index.next_stamp())
                self.content[slot] = block_hash
            else:
                self.index.fail_write(slot)

    @rule(number=NUMBERS)
    def begin_read(self, number: int) -> None:
        if (record := self.index.begin_read(name(number))) is not None:
            assert self.content[record.slot] == name(number)
            self.reading.append(record)

    @rule(data=st.data(), is_sound=st.booleans())
    def end_read(self, data: st.DataObject, is_sound: bool) -> None:
        if self.reading:
            record = self.reading.pop(data.draw(st.integers(0, len(self.reading) - 1)))
            self.index.end_read(record, is_sound=is_sound)
            if not is_sound and self.content.get(record.slot) == record.block_hash and record.slot not in self.writing:
                del self.content[record.slot]

    @rule(number=NUMBERS)
    def touch(self, number: int) -> None:
        self.index.touch(name(number))

    @rule()
    def note(self) -> None:
        changed, lost = self.index.take_changes()
        for record in changed:
            assert self.content[record.slot] == record.block_hash
        assert not set(lost) & set(self.content)

    @invariant()
    def it_has_what_was_written(self) -> None:
        assert len(self.index) == len(self.content) <= NUM_SLOTS
        assert all(block_hash in self.index for block_hash in self.content.values())

    def teardown(self) -> None:
        for record in self.reading:
            self.index.end_read(record, is_sound=True)
        others = [self.index.begin_write(name(number)) for number in range(100, 100 + NUM_SLOTS - len(self.writing))]
        assert sorted([*self.writing, *others]) == list(range(NUM_SLOTS))


TestDiskIndex = DiskIndexMachine.TestCase
TestDiskIndex.settings = settings(max_examples=60, stateful_step_count=40)
