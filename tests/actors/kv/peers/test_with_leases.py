"""Peers over the leases and frames of a real connector: what happens to a frame that is read decides what counts."""

from __future__ import annotations

import pytest
import trio

from actors.kv.frames import Frames
from actors.kv.leases import Leases
from actors.kv.lending import FetchError
from actors.kv.peers import open_peers
from tests.helpers.kv_peers import block_hash, contents, open_reader, open_window, spec

SECONDS = 30.0


class Owner:
    """Four blocks in a window of five frames, and a clock that stands."""

    def __init__(self, window):
        self.now = 0.0
        self.frames = Frames(window.num_frames)
        for number, frame in enumerate(self.frames.grant(4)):
            window.frame(frame)[:] = contents(number, window.frame_bytes)
            self.frames.save(frame, block_hash(number))
        self.leases = Leases(self.frames, SECONDS, lambda: self.now, most_frames=5)

    def pass_time(self, seconds):
        self.now += seconds
        self.leases.expire()


@pytest.fixture
async def pair():
    """The owner, its peers, and a reader."""
    with open_window(5) as window:
        owner = Owner(window)
        async with open_peers(spec(peer_host="127.0.0.1"), window, owner.leases) as peers, open_reader(8) as reader:
            yield owner, peers, reader


def ticket_of(owner, peers):
    return peers.ticket(*owner.leases.grant([block_hash(number) for number in range(4)]), SECONDS)


async def test_what_was_fetched_is_given_back(pair):
    owner, peers, reader = pair

    assert (await reader.fetch(ticket_of(owner, peers), 4)).num_blocks == 4
    await reader.fetch(ticket_of(owner, peers), 4)  # over the same connection, where that comes after the giving back

    assert reader.blocks() == [contents(number, 256) for number in range(4)]
    assert len(owner.leases) <= 1
    assert owner.leases.num_expired == 0


async def test_a_lease_that_has_ended_meanwhile_makes_all_of_it_worthless(pair):
    owner, peers, reader = pair
    take = reader.take

    def take_late(count):
        owner.pass_time(SECONDS)
        return take(count)

    reader.take = take_late
    with pytest.raises(FetchError, match="over before") as caught:
        await reader.fetch(ticket_of(owner, peers), 4)
    assert caught.value.kind == "expired"


async def test_so_does_a_frame_that_holds_something_else_by_now_under_the_same_hash(pair):
    owner, peers, reader = pair
    take = reader.take

    def take_late(count):
        owner.pass_time(SECONDS)
        for frame in owner.frames.grant(5):
            owner.frames.save(frame, block_hash(frame))
        return take(count)

    reader.take = take_late
    with pytest.raises(FetchError) as caught:
        await reader.fetch(ticket_of(owner, peers), 4)
    assert caught.value.kind == "expired"


async def test_who_is_at_it_has_the_lease_for_longer_and_gives_back_as_often_as_it_borrowed(pair):
    owner, _, _ = pair
    lease_id, _ = owner.leases.grant([block_hash(0)])
    lent = owner.leases.borrow(lease_id)
    for _ in range(3):
        owner.pass_time(SECONDS - 1)
        owner.leases.extend(lease_id)

    assert owner.leases.confirm(lease_id, lent)
    owner.leases.give_back(lease_id)
    assert len(owner.leases) == 0
    owner.leases.extend(lease_id)  # it is over: that is no matter
    assert owner.leases.borrow(lease_id) is None


async def test_who_was_cut_off_in_mid_read_does_not_keep_a_lease_that_is_given_back_later(pair):
    owner, peers, reader = pair
    ticket = ticket_of(owner, peers)
    take = reader.take
    with trio.CancelScope() as scope:

        def take_and_leave(count):
            scope.cancel()
            return take(count)

        reader.take = take_and_leave
        await reader.fetch(ticket, 4)
    assert scope.cancelled_caught
    assert len(owner.leases) == 1
    reader.take = take
    await reader.fetch(ticket, 0)  # which gives it back
    with trio.fail_after(5):
        while len(owner.leases):
            await trio.sleep(0.001)

    assert owner.leases.num_expired == 0
