"""The connector as a whole, over memory channels and in virtual time."""

from __future__ import annotations

import errno
from collections import deque
from functools import partial
from pathlib import Path
from random import Random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors.kv.disk_file import BLOCKS
from actors.kv.fetching import MOST_AT_ONCE
from actors.kv.lending import FetchError
from protocol.errors import StartError
from protocol.ids import Epoch
from protocol.kv import KvFind, KvLayout, KvSaved
from tests.helpers.kv_actor import (
    KV_EPOCH,
    LAYOUT,
    NUM_FRAMES,
    FakeEngine,
    FaultyFile,
    Gate,
    KvHouse,
    block_bytes,
    block_name,
    kv_spec,
    names,
    open_kv_house,
)

SAVES_AND_FINDS = ("save", "save", "find", "find", "ticket")
OTHER_LAYOUT = KvLayout(b"o" * 32, 16, [64, 60])


def assert_all_is_left(house: KvHouse, engine: FakeEngine) -> None:
    """No pin, no import, no fetch is left: every frame is the engine's to write, or can be had for it."""
    counts = engine.counts[-1]
    assert counts.frames["importing"] == counts.frames["exported"] == counts.frames["quarantined"] == 0, counts
    assert counts.frames["granted"] == len(engine.granted)
    assert sum(counts.frames.values()) == NUM_FRAMES
    assert house.peers.num_fetching == 0
    assert engine.found == {}


async def test_a_window_for_the_engine_and_frames_to_write_to(autojump_clock):
    async with open_kv_house() as house:
        engine = await house.start_engine()

        assert engine.facts.kv_epoch == KV_EPOCH
        assert engine.facts.inbox_address == house.spec.inbox_address
        assert (engine.facts.window.num_frames, engine.facts.window.layout) == (NUM_FRAMES, LAYOUT)
        assert len(engine.granted) == NUM_FRAMES // 4


async def test_what_was_saved_is_found_up_to_the_first_block_that_is_missing(autojump_clock):
    async with open_kv_house() as house:
        engine = await house.start_engine()
        frames = engine.save(names(1, 2, 4))
        engine.find(1, names(1, 2, 3, 4))

        assert await engine.frames_found(1) == frames[:2]
        assert len(engine.granted) == NUM_FRAMES // 4 - 3

        engine.leave(1)
        engine.leave(1)
        await trio.sleep(1.5)
        assert_all_is_left(house, engine)


async def test_frames_are_granted_anew_as_they_are_used(autojump_clock):
    async with open_kv_house() as house:
        engine = await house.start_engine()
        for number in range(0, 10 * NUM_FRAMES, 8):
            assert len(engine.save(names(*range(number, number + 8)))) == 8
            await wait_all_tasks_blocked()
        engine.give_back(4)
        await trio.sleep(1.5)

        assert engine.counts[-1].saved_blocks == 10 * NUM_FRAMES
        assert engine.counts[-1].frames["held"] >= NUM_FRAMES * 3 // 4
        assert await engine.num_found(*range(10 * NUM_FRAMES - 8, 10 * NUM_FRAMES)) == 8


async def test_what_was_found_stays_until_it_is_left_however_much_is_saved(autojump_clock):
    async with open_kv_house() as house:
        engine = await house.start_engine()
        engine.save(names(1, 2, 3))
        engine.find(1, names(1, 2, 3))
        await engine.frames_found(1)
        for number in range(100, 100 + 3 * NUM_FRAMES, 8):
            engine.save(names(*range(number, number + 8)))
            await wait_all_tasks_blocked()
        engine.leave(1)  # which looks at them again
        for number in range(1000, 1000 + 3 * NUM_FRAMES, 8):
            engine.save(names(*range(number, number + 8)))
            await wait_all_tasks_blocked()

        assert await engine.num_found(1, 2, 3) == 0


async def test_an_engine_has_frames_to_write_to_however_many_are_in_use(autojump_clock):
    async with open_kv_house() as house:
        engine = await house.start_engine()
        for number in range(0, 2 * NUM_FRAMES, 8):
            engine.save(names(*range(number, number + 8)))
            await wait_all_tasks_blocked()
            engine.find(number, names(*range(number, number + 8)))
            await engine.frames_found(number)

        assert len(engine.granted) == NUM_FRAMES // 4
        engine.leave(*range(0, 2 * NUM_FRAMES, 8))
        await trio.sleep(1.5)
        assert_all_is_left(house, engine)


@pytest.mark.parametrize("exports", [False, True])
async def test_of_a_chain_that_was_used_the_end_is_given_up_first_wherever_it_is(
    autojump_clock, tmp_path: Path, exports: bool
):
    spec = kv_spec(tmp_path, disk_bytes=40 * (LAYOUT.frame_bytes + 64))
    async with open_kv_house(spec) as house:
        engine = await house.start_engine()
        chain = range(32)
        for first in range(0, 32, 8):  # as it is computed
            engine.save(names(*chain[first : first + 8]))
            await trio.sleep(0.1)
        if exports:
            engine.export(1, names(*chain))
            await wait_all_tasks_blocked()
            house.peers.lender.give_back(house.peers.tickets[engine.exported[1].ticket])
        else:
            engine.used(names(*chain))
        for number in range(100, 132, 8):
            engine.save(names(*range(number, number + 8)))
            await trio.sleep(0.1)
        frames = house.actor._tenancy._frames

        assert [frames.peek(block_name(number)) is not None for number in (0, 15, 16, 31)] == [True, True, False, False]
    async with open_kv_house(spec) as house:
        engine = await house.start_engine()

        assert await engine.num_found(*chain) == 8


async def test_a_new_engine_finds_what_the_one_before_has_saved(autojump_clock):
    async with open_kv_house() as house:
        first = await house.start_engine()
        first.save(names(1, 2))
        first.find(1, names(1, 2))
        await first.frames_found(1)
        window = first.facts.window
        await house.end_engine(first)
        second = await house.start_engine()

        assert second.facts.window == window
        assert len(second.granted) == NUM_FRAMES // 4
        assert await second.num_found(1, 2, 3) == 2
        await trio.sleep(1.5)
        assert_all_is_left(house, second)


async def test_nothing_that_an_engine_could_write_to_is_used_before_the_next_one_is_there(autojump_clock):
    async with open_kv_house() as house:
        first = await house.start_engine()
        granted = list(first.granted)
        await house.end_engine(first)
        for frame in granted:  # one of its ranks is still at it
            house.window.frame(frame)[:] = b"\xee" * LAYOUT.frame_bytes

        assert {str(house.actor._tenancy._frames.state(frame)) for frame in granted} == {"quarantined"}

        second = await house.start_engine()
        second.save(names(1))
        assert await second.num_found(1) == 1
        await trio.sleep(1.5)
        assert_all_is_left(house, second)


async def test_a_new_engine_that_comes_unannounced_ends_the_one_before(autojump_clock):
    async with open_kv_house() as house:
        first = await house.start_engine()
        house.peers.arrive = trio.Event()
        house.peers.lent[b"t"] = names(1)
        first.find(1, names(1), b"t")
        await wait_all_tasks_blocked()
        assert house.peers.num_fetching == 1
        second = await house.start_engine()
        await house.end_engine(first)  # late: it is not there any more
        first.save(names(9))  # nor is it heard

        assert house.peers.num_fetching == 0
        assert await second.num_found(9) == 0
        await trio.sleep(1.5)
        assert_all_is_left(house, second)


async def test_another_layout_has_another_window_and_knows_nothing_of_the_first(autojump_clock):
    async with open_kv_house() as house:
        first = await house.start_engine()
        first.save(names(1))
        first.export(1, names(1))
        await wait_all_tasks_blocked()
        lender, window = house.peers.lender, house.window
        lease_id = house.peers.tickets[first.exported[1].ticket]
        assert lender.borrow(lease_id) is not None
        second = await house.start_engine(OTHER_LAYOUT)

        assert second.facts.window.layout == OTHER_LAYOUT
        assert lender.borrow(lease_id) is None
        assert await second.num_found(1) == 0
        await trio.sleep(2)
        assert window.descriptor == -1
        assert second.counts[-1].leases_granted == 1


async def test_what_an_engine_still_says_while_its_window_is_let_go_of_does_no_harm(autojump_clock):
    async with open_kv_house() as house:
        first = await house.start_engine()
        house.peers.may_leave = trio.Event()
        house.tell_of_engine(OTHER_LAYOUT)
        await wait_all_tasks_blocked()
        first.find(1, names(1), b"t")
        first.decline(b"u")
        await wait_all_tasks_blocked()
        house.peers.may_leave.set()
        engine = await house.start_engine(OTHER_LAYOUT)

        assert await engine.num_found(1) == 0
        assert (house.peers.asked, house.peers.declined, first.found) == ([], [], {})


async def test_an_old_window_is_closed_once_nobody_reads_it(autojump_clock):
    async with open_kv_house() as house:
        await house.start_engine()
        window = house.window
        view = window.frame(0)
        await house.start_engine(OTHER_LAYOUT)
        await trio.sleep(3)
        assert window.descriptor >= 0
        view.release()
        await trio.sleep(2)

        assert window.descriptor == -1


async def test_a_window_that_is_too_small_is_refused_in_a_sentence(autojump_clock):
    with pytest.raises(ExceptionGroup) as raised:
        async with open_kv_house(kv_spec(num_frames=63)) as house:
            await house.start_engine()

    (error,) = raised.value.exceptions
    while isinstance(error, ExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, StartError)
    assert str(error) == (
        "the KV connector of engine 0 has 8064 bytes of memory, and needs 8192 or more: a block of this model takes "
        "128 bytes"
    )


# ------------------------------------------------------------------ peers


async def test_the_blocks_of_a_ticket_are_fetched_but_those_that_are_here(autojump_clock):
    async with open_kv_house() as house:
        engine = await house.start_engine()
        engine.save(names(1))
        house.peers.lent[b"t"] = names(1, 2, 3)
        engine.find(1, names(1, 2, 3, 4), b"t")

        assert len(await engine.frames_found(1)) == 3
        assert engine.found[1].error is None
        assert house.peers.asked == [names(2, 3, 4)]
        engine.leave(1)
        assert await engine.num_found(2, 3) == 2  # they are cached like others
        await trio.sleep(1.5)
        counts = engine.counts[-1]
        assert (counts.transfers, counts.transfer_bytes, counts.transfer_seconds) == (
            {"fake": 1},
            {"fake": 256},
            {"fake": 0.1},
        )
        assert (counts.queried_blocks, counts.found_blocks) == ({"memory": 6, "peer": 3}, {"memory": 3, "peer": 2})
        assert_all_is_left(house, engine)


async def test_a_ticket_for_what_is_here_is_given_back(autojump_clock):
    async with open_kv_house() as house:
        engine = await house.start_engine()
        engine.save(names(1, 2))
        house.peers.lent |= {b"t": names(1, 2), b"u": names(1, 2, 3)}
        engine.find(1, names(1, 2), b"t")
        assert len(await engine.frames_found(1)) == 2
        engine.decline(b"v")  # the engine's own pool has it all
        engine.find(2, names(1, 2, 3), b"u")
        assert len(await engine.frames_found(2)) == 3

        assert house.peers.declined == [b"t", b"v"]
        assert house.peers.asked == [names(3)]
        engine.leave(1, 2)
        await trio.sleep(1.5)
        assert engine.counts[-1].transfers == {"fake": 1}
        assert_all_is_left(house, engine)


@pytest.mark.parametrize("moment", ["while it is fetched", "while another fetches the same", "too late"])
async def test_a_ticket_is_given_back_at_once_when_nobody_waits_for_its_blocks_any_more(autojump_clock, moment: str):
    async with open_kv_house() as house:
        engine = await house.start_engine()
        house.peers.arrive = trio.Event()
        house.peers.lent |= {b"t": names(1, 2), b"u": names(1, 2)}
        if moment == "while another fetches the same":
            engine.find(9, names(1, 2), b"u")
        engine.find(1, names(1, 2), b"t", seconds=2.0)
        await wait_all_tasks_blocked()
        assert house.peers.declined == []
        if moment == "too late":
            assert await engine.frames_found(1) == []
        engine.leave(1)
        await wait_all_tasks_blocked()
        assert house.peers.declined == [b"t"]
        engine.leave(9)
        await trio.sleep(1.5)

        assert house.peers.declined == ([b"t", b"u"] if moment == "while another fetches the same" else [b"t"])
        assert_all_is_left(house, engine)


async def test_many_tickets_are_given_back_a_few_at_once(autojump_clock):
    async with open_kv_house() as house:
        engine = await house.start_engine()
        house.peers.takes_back = trio.Event()
        tickets = [b"%d" % number for number in range(MOST_AT_ONCE + 9)]
        for ticket in tickets:
            engine.decline(ticket)
        await wait_all_tasks_blocked()
        assert len(house.peers.declined) == MOST_AT_ONCE
        house.peers.takes_back.set()
        await wait_all_tasks_blocked()

        assert sorted(house.peers.declined) == sorted(tickets)


async def test_a_ticket_is_not_given_back_while_another_find_has_the_same_nor_when_the_engine_dies(autojump_clock):
    async with open_kv_house() as house:
        engine = await house.start_engine()
        house.peers.arrive = trio.Event()
        house.peers.lent[b"t"] = names(1, 2)
        engine.find(1, names(1, 2), b"t")
        engine.find(2, names(1, 2), b"t")
        await wait_all_tasks_blocked()
        engine.leave(1)
        await wait_all_tasks_blocked()
        assert house.peers.asked == [names(1, 2), names(1, 2)]
        await house.end_engine(engine)  # its successor is asked the same
        engine = await house.start_engine()
        assert house.peers.declined == []
        house.peers.arrive.set()

        assert await engine.num_found(1, 2, ticket=b"t") == 2
        assert house.peers.declined == []
        await trio.sleep(1.5)
        assert_all_is_left(house, engine)


async def test_what_several_want_is_fetched_once(autojump_clock):
    async with open_kv_house() as house:
        engine = await house.start_engine()
        house.peers.arrive = trio.Event()
        house.peers.lent |= {b"t": names(1, 2), b"u": names(1, 2, 3)}
        engine.find(1, names(1, 2), b"t")
        engine.find(2, names(1, 2), b"t")
        engine.find(3, names(1, 2, 3), b"u")
        engine.find(4, names(1, 2))
        await wait_all_tasks_blocked()
        house.peers.arrive.set()
        found = [len(await engine.frames_found(number)) for number in range(1, 5)]

        assert found == [2, 2, 3, 2]
        assert sorted(house.peers.asked, key=len) == [names(3), names(1, 2)]
        engine.leave(1, 2, 3, 4)
        await trio.sleep(1.5)
        assert_all_is_left(house, engine)


async def test_who_waits_for_another_s_fetch_goes_on_alone_when_that_is_left(autojump_clock):
    async with open_kv_house() as house:
        engine = await house.start_engine()
        house.peers.arrive = trio.Event()
        house.peers.lent[b"t"] = names(1, 2)
        engine.find(1, names(1, 2), b"t")
        engine.find(2, names(1, 2), b"t")
        engine.find(3, names(1, 2))
        await wait_all_tasks_blocked()
        engine.leave(1)
        await wait_all_tasks_blocked()
        house.peers.arrive.set()

        assert len(await engine.frames_found(2)) == 2
        assert len(await engine.frames_found(3)) in (0, 2)
        engine.leave(2, 3)
        await trio.sleep(1.5)
        assert_all_is_left(house, engine)


async def test_a_fetch_that_fails_is_told_and_counted_and_nothing_of_it_used(autojump_clock):
    async with open_kv_house() as house:
        engine = await house.start_engine()
        house.peers.lent[b"t"] = names(1)
        house.peers.error = FetchError("expired", "the lease is over")
        engine.find(1, names(1), b"t")

        assert await engine.frames_found(1) == []
        assert engine.found[1].error == "the lease is over"
        engine.leave(1)
        await trio.sleep(1.5)
        assert engine.counts[-1].failures == {"expired": 1}
        assert_all_is_left(house, engine)


async def test_a_fetch_that_breaks_by_our_mistake_costs_its_find_only(autojump_clock):
    async with open_kv_house() as house:
        engine = await house.start_engine()
        house.peers.lent[b"t"] = names(1)
        house.peers.error = ValueError("mistake")
        engine.find(1, names(1), b"t")

        assert await engine.frames_found(1) == []
        assert engine.found[1].error == "ValueError: mistake"
        engine.leave(1)
        house.peers.error = None
        assert await engine.num_found(1, ticket=b"t") == 1


async def test_a_find_is_answered_in_time_with_what_is_here(autojump_clock):
    async with open_kv_house() as house:
        engine = await house.start_engine()
        engine.save(names(1))
        house.peers.arrive = trio.Event()
        house.peers.lent[b"t"] = names(1, 2)
        began = trio.current_time()
        engine.find(1, names(1, 2), b"t", seconds=2.0)

        assert len(await engine.frames_found(1)) == 1
        assert trio.current_time() - began < 2.0
        assert engine.found[1].error == "the blocks of the ticket did not come in time"
        engine.leave(1)
        await trio.sleep(1.5)
        assert engine.counts[-1].failures == {"timeout": 1}
        assert_all_is_left(house, engine)


async def test_who_writes_late_writes_to_frames_that_nobody_uses(autojump_clock):
    async with open_kv_house() as house:
        engine = await house.start_engine()
        house.peers.arrive = trio.Event()
        house.peers.writes_late = True
        house.peers.lent[b"t"] = names(1, 2, 3)
        engine.find(1, names(1, 2, 3), b"t")
        await wait_all_tasks_blocked()
        engine.leave(1)
        await trio.sleep(1.5)
        assert engine.counts[-1].frames["quarantined"] == 3
        for number in range(100, 100 + 2 * NUM_FRAMES, 8):
            engine.save(names(*range(number, number + 8)))
            await wait_all_tasks_blocked()
        engine.find(2, names(*range(100 + 2 * NUM_FRAMES - 8, 100 + 2 * NUM_FRAMES)))
        await engine.frames_found(2)
        house.peers.settle.pop()()
        engine.leave(2)  # which looks whether they are what they were
        await trio.sleep(1.5)

        assert_all_is_left(house, engine)


async def test_a_prompt_that_the_window_has_no_room_for_is_fetched_in_part(autojump_clock):
    async with open_kv_house() as house:
        engine = await house.start_engine()
        blocks = names(*range(2 * NUM_FRAMES))
        house.peers.lent[b"t"] = blocks
        engine.find(1, blocks, b"t")
        num_found = len(await engine.frames_found(1))

        assert num_found == NUM_FRAMES - len(engine.granted)
        assert "there was room for only" in engine.found[1].error
        engine.leave(1)
        await trio.sleep(1.5)
        assert_all_is_left(house, engine)


@pytest.mark.parametrize("moment", ["at once", "while it is fetched", "when it is found"])
async def test_a_find_may_be_left_at_any_time(autojump_clock, moment: str):
    async with open_kv_house() as house:
        engine = await house.start_engine()
        engine.save(names(1))
        house.peers.arrive = trio.Event()
        house.peers.lent[b"t"] = names(1, 2)
        engine.find(1, names(1, 2), b"t")
        if moment != "at once":
            await wait_all_tasks_blocked()
        if moment == "when it is found":
            house.peers.arrive.set()
            await engine.frames_found(1)
        engine.leave(1)
        await trio.sleep(20)

        assert engine.found == {}
        assert_all_is_left(house, engine)


# ------------------------------------------------------------------ exports


async def test_what_is_exported_stays_until_it_is_fetched(autojump_clock):
    async with open_kv_house() as house:
        engine = await house.start_engine()
        engine.save(names(1, 2))
        engine.export(1, names(1, 2, 3))
        await wait_all_tasks_blocked()
        exported = engine.exported[1]
        lease_id = house.peers.tickets[exported.ticket]
        assert exported.num_blocks == 2
        await house.end_engine(engine)
        engine = await house.start_engine()  # exports outlive the engine
        for number in range(100, 100 + 3 * NUM_FRAMES, 8):
            engine.save(names(*range(number, number + 8)))
            await wait_all_tasks_blocked()
        lent = house.peers.lender.borrow(lease_id)

        assert [one.block_hash for one in lent] == names(1, 2)
        assert [engine.read(one.frame) for one in lent] == [block_bytes(one) for one in names(1, 2)]
        assert house.peers.lender.confirm(lease_id, lent)
        house.peers.lender.give_back(lease_id)
        await trio.sleep(1.5)
        assert_all_is_left(house, engine)


async def test_a_lease_that_nobody_asks_for_ends(autojump_clock):
    async with open_kv_house() as house:
        engine = await house.start_engine()
        engine.save(names(1))
        engine.export(1, names(1))
        await trio.sleep(house.spec.lease_seconds - 0.5)
        assert engine.counts[-1].leases == 1
        await trio.sleep(2)

        assert (engine.counts[-1].leases, engine.counts[-1].leases_expired) == (0, 1)
        assert_all_is_left(house, engine)


async def test_what_is_not_there_cannot_be_promised(autojump_clock):
    async with open_kv_house() as house:
        engine = await house.start_engine()
        engine.export(1, names(1))
        await wait_all_tasks_blocked()

        assert (engine.exported[1].ticket, engine.exported[1].num_blocks) == (b"", 0)


# ------------------------------------------------------------------ the disk


async def test_what_memory_has_no_room_for_comes_from_the_disk(autojump_clock, tmp_path: Path):
    async with open_kv_house(kv_spec(tmp_path)) as house:
        engine = await house.start_engine()
        for number in range(0, 4 * NUM_FRAMES, 8):
            engine.save(names(*range(number, number + 8)))
            await wait_all_tasks_blocked()
        await trio.sleep(1.5)
        assert engine.counts[-1].disk_blocks == 4 * NUM_FRAMES

        assert await engine.num_found(*range(8)) == 8
        assert await engine.num_found(*range(4 * NUM_FRAMES - 8, 4 * NUM_FRAMES + 1)) == 8
        await trio.sleep(1.5)
        assert engine.counts[-1].queried_blocks == {"memory": 17, "disk": 9}
        assert engine.counts[-1].found_blocks == {"memory": 8, "disk": 8}
        assert engine.counts[-1].disk_bytes == 4 * NUM_FRAMES * LAYOUT.frame_bytes
        assert_all_is_left(house, engine)


async def test_a_connector_that_was_ended_finds_on_the_disk_what_it_had(autojump_clock, tmp_path: Path):
    async with open_kv_house(kv_spec(tmp_path)) as house:
        engine = await house.start_engine()
        engine.save(names(1, 2))
    async with open_kv_house(kv_spec(tmp_path)) as house:
        engine = await house.start_engine()

        assert await engine.num_found(1, 2, 3) == 2


async def test_who_asks_while_the_disk_is_being_opened_waits_for_it_but_not_for_long(autojump_clock, tmp_path: Path):
    async with open_kv_house(kv_spec(tmp_path)) as house:
        (await house.start_engine()).save(names(1, 2))
    gate = Gate()
    gate.close()
    async with open_kv_house(kv_spec(tmp_path), in_thread=gate) as house:
        engine = await house.start_engine()
        engine.save(names(7))
        assert await engine.num_found(7) == 1
        engine.find(1, names(1, 2, 3))
        await trio.sleep(1)
        assert engine.found == {}
        gate.open()

        assert len(await engine.frames_found(1)) == 2
        engine.leave(1)
        await trio.sleep(1.5)
        assert_all_is_left(house, engine)
    gate.close()
    async with open_kv_house(kv_spec(tmp_path), in_thread=gate) as house:
        engine = await house.start_engine()
        began = trio.current_time()
        assert await engine.num_found(1, 2) == 0
        assert trio.current_time() - began < 2.5
        began = trio.current_time()
        assert await engine.num_found(1, 2) == 0
        assert trio.current_time() - began < 0.1
        gate.open()
        await trio.sleep(1.5)
        assert await engine.num_found(1, 2) == 2


async def test_a_disk_that_cannot_be_opened_is_not_waited_for(autojump_clock, tmp_path: Path):
    (tmp_path / "file").touch()
    async with open_kv_house(kv_spec(tmp_path / "file")) as house:
        engine = await house.start_engine()
        began = trio.current_time()

        assert await engine.num_found(1) == 0
        assert trio.current_time() - began < 0.1


async def test_the_disk_keeps_what_was_used_last(autojump_clock, tmp_path: Path):
    spec = kv_spec(tmp_path, disk_bytes=8 * (LAYOUT.frame_bytes + 64))
    async with open_kv_house(spec) as house:
        engine = await house.start_engine()
        for number in range(8):
            engine.save(names(number))
            await wait_all_tasks_blocked()
        assert await engine.num_found(0) == 1
        engine.save(names(100))
        await trio.sleep(10)
    assert (tmp_path / LAYOUT.digest.hex() / BLOCKS).stat().st_size <= spec.disk_bytes
    async with open_kv_house(spec) as house:
        engine = await house.start_engine()
        await trio.sleep(1)

        assert [await engine.num_found(number) for number in (0, 1, 2, 100)] == [1, 0, 1, 1]


async def test_a_disk_that_hangs_holds_up_nobody_for_long(autojump_clock, tmp_path: Path):
    gate = Gate()
    async with open_kv_house(kv_spec(tmp_path), in_thread=gate) as house:
        engine = await house.start_engine()
        for number in range(0, 2 * NUM_FRAMES, 8):
            engine.save(names(*range(number, number + 8)))
            await wait_all_tasks_blocked()
        gate.close()
        for number in range(1000, 1000 + 2 * NUM_FRAMES, 8):  # none of which is written
            engine.save(names(*range(number, number + 8)))
            await wait_all_tasks_blocked()
        began = trio.current_time()
        engine.find(1, names(0, 1))
        assert await engine.frames_found(1) == []
        assert trio.current_time() - began < 5
        engine.leave(1)
        began = trio.current_time()
        assert await engine.num_found(4, 5) == 0
        assert trio.current_time() - began < 0.1  # it is known to hang
        gate.open()
        await trio.sleep(1.5)

        assert await engine.num_found(4, 5) == 2
        await trio.sleep(1.5)
        assert_all_is_left(house, engine)


async def test_a_block_that_was_read_for_nobody_is_kept(autojump_clock, tmp_path: Path):
    async with open_kv_house(kv_spec(tmp_path)) as house:
        (await house.start_engine()).save(names(1, 2))
    gate = Gate()
    async with open_kv_house(kv_spec(tmp_path), in_thread=gate) as house:
        engine = await house.start_engine()
        await trio.sleep(1)
        gate.close()
        engine.find(1, names(1, 2))
        await wait_all_tasks_blocked()
        engine.leave(1)
        await wait_all_tasks_blocked()
        gate.open()
        await trio.sleep(1)
        gate.close()

        assert await engine.num_found(1, 2) == 2
        gate.open()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
async def test_a_disk_that_takes_nothing_is_let_alone_and_tried_again(
    autojump_clock, tmp_path: Path, number: int, caplog: pytest.LogCaptureFixture
):
    errors = deque([OSError(number, "it does not"), OSError(number, "it does not")])
    open_file = partial(FaultyFile, errors=errors, read_errors=deque())
    async with open_kv_house(kv_spec(tmp_path), open_file=open_file) as house:
        engine = await house.start_engine()
        engine.save(names(1))
        await trio.sleep(1.5)
        assert engine.counts[-1].failures == {"disk": 1}
        assert await engine.num_found(1) == 1
        engine.save(names(2))
        await trio.sleep(32)
        assert engine.counts[-1].failures == {"disk": 2}
        engine.save(names(3))
        await trio.sleep(32)
        assert engine.counts[-1].disk_blocks >= 1
    assert len([one for one in caplog.records if one.levelname == "WARNING"]) == 1


async def test_a_block_that_cannot_be_read_is_missing(autojump_clock, tmp_path: Path):
    async with open_kv_house(kv_spec(tmp_path)) as house:
        (await house.start_engine()).save(names(1, 2, 3))
    open_file = partial(FaultyFile, errors=deque(), read_errors=deque([OSError(errno.EIO, "bad sector")]))
    async with open_kv_house(kv_spec(tmp_path), open_file=open_file) as house:
        engine = await house.start_engine()
        await trio.sleep(1)

        assert await engine.num_found(1) == 0
        assert await engine.num_found(1, 2, 3) == 0
        assert await engine.num_found(2, 3) == 2
        await trio.sleep(1.5)
        assert engine.counts[-1].failures == {"disk": 1}
        assert engine.counts[-1].disk_blocks == 2
        assert_all_is_left(house, engine)


async def test_a_directory_that_vanishes_is_made_anew(autojump_clock, tmp_path: Path):
    directory = tmp_path / "kv"
    async with open_kv_house(kv_spec(directory)) as house:
        engine = await house.start_engine()
        engine.save(names(1))
        await trio.sleep(1)
        directory.rename(tmp_path / "gone")
        engine.save(names(2))
        await trio.sleep(40)
        engine.save(names(3))
        await trio.sleep(1.5)

        assert engine.counts[-1].disk_blocks == 1
        assert (directory / LAYOUT.digest.hex() / BLOCKS).exists()
        assert await engine.num_found(1, 2, 3) == 3


async def test_the_second_connector_in_a_directory_goes_without_until_the_first_has_left(
    autojump_clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with open_kv_house(kv_spec(tmp_path)) as second:
        async with open_kv_house(kv_spec(tmp_path)) as first:
            one = await first.start_engine()
            one.save(names(1))
            other = await second.start_engine()
            other.save(names(2))
            await trio.sleep(20)
            assert other.counts[-1].disk_blocks == 0
            assert [record.levelname for record in caplog.records] == ["WARNING"]
            assert "in use by another connector" in caplog.text
            assert await other.num_found(2) == 1
        await trio.sleep(40)

        assert await other.num_found(1, 2) == 2


async def test_a_reset_forgets_memory_and_disk(autojump_clock, tmp_path: Path):
    async with open_kv_house(kv_spec(tmp_path)) as house:
        engine = await house.start_engine()
        engine.save(names(1, 2))
        await trio.sleep(1)
        engine.find(1, names(1))
        await engine.frames_found(1)
        engine.reset(5)
        await wait_all_tasks_blocked()

        assert engine.resets == [5]
        assert await engine.num_found(1, 2) == 0
        engine.leave(1)
        assert await engine.num_found(1) == 0
        engine.save(names(7))
        await trio.sleep(1.5)
        assert engine.counts[-1].disk_blocks == 1
        assert_all_is_left(house, engine)
    async with open_kv_house(kv_spec(tmp_path)) as house:
        engine = await house.start_engine()
        await trio.sleep(1)
        assert [await engine.num_found(number) for number in (1, 2, 7)] == [0, 0, 1]


async def test_what_is_being_read_when_all_is_forgotten_is_forgotten_too(autojump_clock, tmp_path: Path):
    async with open_kv_house(kv_spec(tmp_path)) as house:
        (await house.start_engine()).save(names(1))
    gate = Gate()
    async with open_kv_house(kv_spec(tmp_path), in_thread=gate) as house:
        engine = await house.start_engine()
        await trio.sleep(1)
        gate.close()
        engine.find(1, names(1))
        await wait_all_tasks_blocked()
        engine.leave(1)
        engine.reset(1)
        await wait_all_tasks_blocked()
        assert engine.resets == []
        gate.open()
        await trio.sleep(1.5)

        assert engine.resets == [1]
        assert await engine.num_found(1) == 0
        await trio.sleep(1.5)
        assert_all_is_left(house, engine)


async def test_a_reset_that_the_disk_does_not_take_holds_once_it_does(autojump_clock, tmp_path: Path):
    async with open_kv_house(kv_spec(tmp_path)) as house:
        (await house.start_engine()).save(names(1))
    errors = deque([OSError(errno.EIO, "it does not")])
    open_file = partial(FaultyFile, errors=errors, read_errors=deque())
    async with open_kv_house(kv_spec(tmp_path), open_file=open_file) as house:
        engine = await house.start_engine()
        await trio.sleep(1)
        engine.save(names(2))
        await trio.sleep(1)  # it rests now
        engine.reset(1)
        await trio.sleep(0.1)
        assert engine.resets == [1]
        assert await engine.num_found(1) == 0
        await trio.sleep(60)

        assert await engine.num_found(1) == 0
    async with open_kv_house(kv_spec(tmp_path)) as house:
        engine = await house.start_engine()
        await trio.sleep(1)
        assert await engine.num_found(1) == 0


async def test_a_peer_s_blocks_are_asked_for_before_the_disk_s_which_help_out(autojump_clock, tmp_path: Path):
    async with open_kv_house(kv_spec(tmp_path)) as house:
        (await house.start_engine()).save(names(1, 2))
    async with open_kv_house(kv_spec(tmp_path)) as house:
        engine = await house.start_engine()
        await trio.sleep(1)
        house.peers.error = FetchError("unreachable", "nobody is there")
        engine.find(1, names(1, 2), b"t")

        assert len(await engine.frames_found(1)) == 2
        assert engine.found[1].error is None
        engine.leave(1)
        await trio.sleep(1.5)
        assert_all_is_left(house, engine)


async def test_what_another_incarnation_says_is_ignored(autojump_clock):
    async with open_kv_house() as house:
        engine = await house.start_engine()
        house.say(KvFind(Epoch(1), 1, names(1)))
        await wait_all_tasks_blocked()

        assert engine.found == {}
        assert await engine.num_found(1) == 0


async def test_nonsense_of_an_engine_does_no_harm(autojump_clock):
    async with open_kv_house() as house:
        engine = await house.start_engine()
        engine.find(1, [])
        engine.find(2, [block_name(1), block_name(1)])
        engine.leave(99)
        (frame,) = engine.save(names(1))
        house.say(KvSaved(engine.epoch, [frame, -1, 10**9], names(2, 3, 4)))
        house.say(KvSaved(engine.epoch, [engine.granted[0]], []))

        assert await engine.frames_found(1) == []
        assert await engine.frames_found(2) == []
        engine.leave(1, 2)
        assert await engine.num_found(1) == 1
        await trio.sleep(1.5)
        assert_all_is_left(house, engine)


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_happens_every_frame_found_is_right_and_everything_can_be_left(
    autojump_clock, tmp_path: Path, seed: int
):
    random = Random(seed)
    errors: deque[OSError] = deque()
    read_errors: deque[OSError] = deque()
    open_file = partial(FaultyFile, errors=errors, read_errors=read_errors)
    spec = kv_spec(tmp_path, disk_bytes=150 * (LAYOUT.frame_bytes + 64))
    async with open_kv_house(spec, open_file=open_file) as house:
        engine = await house.start_engine()
        peers, asked = house.peers, []
        for number in range(600):
            first = random.randrange(200)
            chain = names(*range(first, first + random.randrange(1, 30)))
            match random.choice(
                [*SAVES_AND_FINDS, "leave", "leave", "leave", "export", "lease", "peers", "disk", "reset", "engine"]
            ):
                case "save":
                    engine.save(chain)
                case "find":
                    asked.append(engine.find(number, chain, seconds=random.choice([0.1, 5.0])))
                case "ticket":
                    peers.lent[b"%d" % number] = chain[: random.randrange(30)]
                    asked.append(engine.find(number, chain, b"%d" % number, seconds=random.choice([0.1, 5.0])))
                case "leave" if asked:
                    engine.leave(asked.pop(random.randrange(len(asked))))
                case "export":
                    engine.export(number, chain)
                case "lease" if peers.tickets:
                    lease_id = random.choice(list(peers.tickets.values()))
                    if (lent := peers.lender.borrow(lease_id)) is not None:
                        assert [engine.read(one.frame) for one in lent] == [block_bytes(one.block_hash) for one in lent]
                        assert peers.lender.confirm(lease_id, lent)
                        peers.lender.give_back(lease_id)
                case "peers":
                    peers.error = random.choice([None, None, FetchError("broken", "it breaks")])
                    peers.writes_late = random.random() < 0.5
                    if random.random() < 0.5:
                        peers.arrive.set()
                    else:
                        peers.arrive = trio.Event()
                    if random.random() < 0.5:
                        while peers.settle:
                            peers.settle.pop()()
                case "disk":
                    failing = random.choice([errors, read_errors, read_errors, read_errors])
                    failing.append(OSError(errno.EIO, "it breaks"))
                case "reset" if random.random() < 0.2:
                    engine.reset(number)
                case "engine" if random.random() < 0.3:
                    asked.clear()
                    if random.random() < 0.5:
                        await house.end_engine(engine)
                    engine = await house.start_engine()
            await trio.sleep(random.choice([0, 0, 0.01, 0.3]))
        engine.leave(*asked)
        await wait_all_tasks_blocked()
        while peers.settle:
            peers.settle.pop()()
        await trio.sleep(house.spec.lease_seconds + 2)
        assert_all_is_left(house, engine)
        counts = engine.counts[-1]
        assert min(counts.found_blocks["memory"], counts.found_blocks["peer"]) > 0
        assert counts.disk_bytes <= spec.disk_bytes
