from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from actors.kv.frames import Frames, FrameState, Pin
from protocol.kv import BlockHash


def name(number: int) -> BlockHash:
    return BlockHash(b"%d" % number)


def filled(num_frames: int) -> Frames:
    """Frame i holds block i."""
    frames = Frames(num_frames)
    for number, frame in enumerate(frames.grant(num_frames)):
        frames.save(frame, name(number))
    return frames


def test_what_was_used_last_is_given_up_last():
    frames = filled(3)
    frames.find(name(0))

    assert frames.grant(2) == [1, 2]
    assert frames.find(name(0)) == 0
    assert frames.find(name(1)) is None


def test_the_end_of_a_chain_is_given_up_before_its_beginning():
    frames = filled(3)
    for frame in range(3):
        frames.pin(frame, Pin.USE)
    frames.unpin([0, 1, 2], Pin.USE)

    assert frames.grant(2) == [2, 1]


def test_nothing_is_given_up_that_is_pinned():
    frames = filled(3)
    frames.pin(0, Pin.USE)
    frames.pin(2, Pin.LEASE)

    assert frames.grant(3) == [1]
    assert frames.take_for_import(1) == []
    assert frames.find(name(0)) == 0
    assert frames.find(name(2)) == 2


def test_a_block_that_is_saved_again_replaces_the_one_before_which_stays_for_those_who_have_it():
    frames = Frames(3)
    first, second = frames.grant(2)
    frames.save(first, name(7))
    frames.pin(first, Pin.USE)
    frames.save(second, name(7))

    assert frames.find(name(7)) == second
    assert (frames.state(first), frames.block_hash(first)) == (FrameState.HELD, name(7))

    frames.unpin([first], Pin.USE)

    assert frames.state(first) is FrameState.FREE


def test_a_block_that_is_imported_twice_is_held_once():
    frames = Frames(3)
    first, second = frames.take_for_import(2)

    assert frames.imported(first, name(7)) == first
    assert frames.imported(second, name(7)) == first
    assert frames.state(second) is FrameState.FREE


def test_what_is_forgotten_is_not_found_and_free_once_nobody_has_it():
    frames = filled(2)
    frames.pin(1, Pin.USE)
    frames.forget_all()

    assert (frames.find(name(0)), frames.find(name(1))) == (None, None)
    assert (frames.state(0), frames.state(1)) == (FrameState.FREE, FrameState.HELD)

    frames.unpin([1], Pin.USE)

    assert frames.state(1) is FrameState.FREE


def test_a_frame_is_counted_under_one_state():
    frames = filled(4)
    frames.pin(0, Pin.LEASE)
    frames.pin(0, Pin.LEASE)
    frames.quarantine(frames.grant(1)[0])

    assert frames.counts() == {
        "free": 0,
        "granted": 0,
        "importing": 0,
        "held": 2,
        "exported": 1,
        "quarantined": 1,
    }


@pytest.mark.parametrize("act", [Frames.give_back, Frames.drop, Frames.release, Frames.quarantine])
def test_what_a_frame_is_not_fails(act):
    with pytest.raises(AssertionError):
        act(filled(1), 0)


NUM_FRAMES = 6


class FramesMachine(RuleBasedStateMachine):
    """Beside a plain model: what each frame is, holds, and who has it pinned."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = Frames(NUM_FRAMES)
        self.state = dict.fromkeys(range(NUM_FRAMES), FrameState.FREE)
        self.content: dict[int, BlockHash] = {}
        self.pins: Counter[tuple[int, Pin]] = Counter()
        self.generations = dict.fromkeys(range(NUM_FRAMES), 0)

    def of(self, *states: FrameState) -> list[int]:
        return [frame for frame, state in self.state.items() if state in states]

    def is_pinned(self, frame: int) -> bool:
        return any(self.pins[frame, why] for why in Pin)

    def took(self, frames: list[int], state: FrameState, most: int) -> None:
        available = [
            frame
            for frame in range(NUM_FRAMES)
            if self.state[frame] is FrameState.FREE
            or (self.state[frame] is FrameState.HELD and not self.is_pinned(frame))
        ]
        assert len(frames) == len(set(frames)) == min(most, len(available))
        for frame in frames:
            assert frame in available
            assert self.frames.generation(frame) == self.generations[frame] + 1
            self.generations[frame] += 1
            self.content.pop(frame, None)
            self.state[frame] = state

    @rule(most=st.integers(0, 4))
    def grant(self, most: int) -> None:
        self.took(self.frames.grant(most), FrameState.GRANTED, most)

    @rule(most=st.integers(0, 4))
    def take(self, most: int) -> None:
        self.took(self.frames.take_for_import(most), FrameState.IMPORTING, most)

    @rule(data=st.data(), number=st.integers(0, 4))
    def fill(self, data: st.DataObject, number: int) -> None:
        if not (writing := self.of(FrameState.GRANTED, FrameState.IMPORTING)):
            return
        frame = data.draw(st.sampled_from(writing))
        if self.state[frame] is FrameState.GRANTED:
            before = self.frames.find(name(number))
            self.frames.save(frame, name(number))
            if before is not None and not self.is_pinned(before):
                self.free(before)
            self.hold(frame, name(number))
        elif (held := self.frames.imported(frame, name(number))) == frame:
            self.hold(frame, name(number))
        else:
            assert self.content[held] == name(number)
            self.free(frame)

    def hold(self, frame: int, block_hash: BlockHash) -> None:
        self.state[frame], self.content[frame] = FrameState.HELD, block_hash

    def free(self, frame: int) -> None:
        self.state[frame] = FrameState.FREE
        self.content.pop(frame, None)

    @rule(data=st.data())
    def give_up_writing(self, data: st.DataObject) -> None:
        if writing := self.of(FrameState.GRANTED, FrameState.IMPORTING):
            frame = data.draw(st.sampled_from(writing))
            if data.draw(st.booleans()):
                self.frames.quarantine(frame)
                self.state[frame] = FrameState.QUARANTINED
            else:
                (self.frames.give_back if self.state[frame] is FrameState.GRANTED else self.frames.drop)(frame)
                self.free(frame)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if late := self.of(FrameState.QUARANTINED):
            frame = data.draw(st.sampled_from(late))
            self.frames.release(frame)
            self.free(frame)

    @rule(number=st.integers(0, 4), why=st.sampled_from(Pin))
    def pin(self, number: int, why: Pin) -> None:
        if (frame := self.frames.find(name(number))) is not None:
            assert (self.state[frame], self.content[frame]) == (FrameState.HELD, name(number))
            self.frames.pin(frame, why)
            self.pins[frame, why] += 1

    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        if pinned := [pin for pin, times in self.pins.items() if times]:
            frame, why = data.draw(st.sampled_from(sorted(pinned, key=str)))
            is_found = self.frames.find(self.content[frame]) == frame
            self.frames.unpin([frame], why)
            self.pins[frame, why] -= 1
            if not is_found and not self.is_pinned(frame):
                self.free(frame)

    @rule()
    def forget(self) -> None:
        self.frames.forget_all()
        for frame in self.of(FrameState.HELD):
            if not self.is_pinned(frame):
                self.free(frame)

    @invariant()
    def every_frame_is_what_it_should_be(self) -> None:
        for frame, state in self.state.items():
            assert self.frames.state(frame) is state
            if state is FrameState.HELD:
                assert self.frames.block_hash(frame) == self.content[frame]
        assert sum(self.frames.counts().values()) == NUM_FRAMES
        exported = {frame for (frame, why), times in self.pins.items() if times and why is Pin.LEASE}
        assert self.frames.num_exported == len(exported)
        assert self.frames.granted == set(self.of(FrameState.GRANTED))

    def teardown(self) -> None:
        """When everything is left, every frame can be had again."""
        for (frame, why), times in self.pins.items():
            for _ in range(times):
                self.frames.unpin([frame], why)
        for frame in range(NUM_FRAMES):
            match self.frames.state(frame):
                case FrameState.GRANTED:
                    self.frames.give_back(frame)
                case FrameState.IMPORTING:
                    self.frames.drop(frame)
                case FrameState.QUARANTINED:
                    self.frames.release(frame)
        assert sorted(self.frames.grant(NUM_FRAMES + 1)) == list(range(NUM_FRAMES))


TestFrames = FramesMachine.TestCase
TestFrames.settings = settings(max_examples=60, stateful_step_count=40)
