from __future__ import annotations

import attrs
import pytest

from actors.kv.frames import Frames, FrameState
from actors.kv.leases import Leases
from protocol.kv import BlockHash
from tests.actors.kv.test_frames import filled, name

SECONDS = 30.0


@attrs.define
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def leases_over(frames: Frames, clock: Clock, most_frames: int = 100) -> Leases:
    return Leases(frames, SECONDS, clock, most_frames=most_frames)


def names(*numbers: int) -> list[BlockHash]:
    return [name(number) for number in numbers]


def test_what_was_promised_stays_until_it_is_given_back(clock: Clock):
    frames = filled(4)
    leases = leases_over(frames, clock)
    lease_id, num_blocks = leases.grant(names(1, 2))

    assert num_blocks == 2
    assert sorted(frames.grant(4)) == [0, 3]

    lent = leases.borrow(lease_id)
    assert [(one.block_hash, one.frame) for one in lent] == [(name(1), 1), (name(2), 2)]
    assert leases.confirm(lease_id, lent)

    leases.give_back(lease_id)
    leases.give_back(lease_id)

    assert leases.borrow(lease_id) is None
    assert frames.find(name(1)) == 1  # it is only cached from now on
    assert sorted(frames.grant(4)) == [1, 2]


def test_the_first_block_that_is_missing_ends_the_promise(clock: Clock):
    frames = filled(3)
    leases = leases_over(frames, clock)

    assert leases.grant(names(0, 9, 1))[1] == 1
    assert leases.grant(names(9, 0)) is None
    assert frames.num_exported == 1


def test_leases_leave_frames_to_the_engine(clock: Clock):
    leases = leases_over(filled(4), clock, most_frames=2)

    assert leases.grant(names(0, 1, 2))[1] == 2
    assert leases.grant(names(3)) is None


def test_a_lease_ends_with_its_time_and_what_was_read_meanwhile_does_not_count(clock: Clock):
    frames = filled(2)
    leases = leases_over(frames, clock)
    lease_id, _ = leases.grant(names(0))
    clock.now += SECONDS - 1
    lent = leases.borrow(lease_id)  # which extends it
    clock.now += SECONDS - 1

    assert leases.confirm(lease_id, lent)
    assert leases.next_expiry == clock.now + 1

    clock.now += 1

    assert not leases.confirm(lease_id, lent)
    assert (len(leases), leases.num_granted, leases.num_expired) == (0, 1, 1)
    assert frames.num_exported == 0


def test_leases_of_which_nobody_hears_any_more_expire(clock: Clock):
    frames = filled(2)
    leases = leases_over(frames, clock)
    leases.grant(names(0))
    clock.now += SECONDS
    leases.grant(names(1))
    leases.expire()

    assert (len(leases), frames.num_exported, leases.num_expired) == (1, 1, 1)


def test_several_may_read_under_one_lease(clock: Clock):
    leases = leases_over(filled(2), clock)
    lease_id, _ = leases.grant(names(0))
    lent = leases.borrow(lease_id)
    assert leases.borrow(lease_id) == lent
    leases.give_back(lease_id)

    assert leases.confirm(lease_id, lent)


def test_nothing_is_confirmed_that_was_not_lent(clock: Clock):
    frames = filled(3)
    leases = leases_over(frames, clock)
    lease_id, _ = leases.grant(names(0))
    other_id, _ = leases.grant(names(1))
    (lent,) = leases.borrow(lease_id)

    assert not leases.confirm(other_id, [lent])
    assert not leases.confirm(lease_id, [attrs.evolve(lent, generation=lent.generation - 1)])
    assert not leases.confirm(lease_id, [attrs.evolve(lent, block_hash=name(2))])


def test_a_frame_is_pinned_as_long_as_one_of_its_leases_lasts(clock: Clock):
    frames = filled(1)
    leases = leases_over(frames, clock)
    first, _ = leases.grant(names(0))
    clock.now += 1
    leases.grant(names(0))
    leases.give_back(first)

    assert frames.grant(1) == []

    leases.end_all()

    assert frames.grant(1) == [0]
    assert frames.state(0) is FrameState.GRANTED


def test_who_went_without_giving_it_back_does_not_keep_it_from_those_who_do(clock: Clock):
    leases = leases_over(filled(1), clock)
    lease_id, _ = leases.grant(names(0))
    leases.borrow(lease_id)
    leases.leave(lease_id)  # and it comes again
    assert leases.borrow(lease_id) is not None
    leases.give_back(lease_id)

    assert len(leases) == 0


def test_who_goes_last_ends_what_was_given_back(clock: Clock):
    frames = filled(1)
    leases = leases_over(frames, clock)
    lease_id, _ = leases.grant(names(0))
    leases.borrow(lease_id)
    leases.borrow(lease_id)
    leases.give_back(lease_id)
    assert len(leases) == 1
    leases.leave(lease_id)
    leases.leave(lease_id)

    assert (len(leases), frames.num_exported, leases.num_expired) == (0, 0, 0)


def test_what_was_extended_ends_behind_what_was_granted_later(clock: Clock):
    leases = leases_over(filled(2), clock)
    first, _ = leases.grant(names(0))
    clock.now += 10
    second, _ = leases.grant(names(1))
    clock.now += 10
    leases.extend(first)

    assert leases.next_expiry == clock.now + SECONDS - 10

    clock.now += SECONDS - 10
    leases.expire()

    assert (leases.borrow(second), len(leases)) == (None, 1)
