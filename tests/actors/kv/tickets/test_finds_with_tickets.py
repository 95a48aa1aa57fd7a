"""A connector whose engine looks for what others have, and has tickets made for what it has; in virtual time."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors.kv.fetching import MOST_AT_ONCE
from actors.kv.lending import FetchError
from tests.helpers.kv_actor import (
    NUM_FRAMES,
    assert_all_is_left,
    block_bytes,
    names,
    open_kv_house,
)


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


async def test_the_log_tells_of_failures_by_kind_and_minute(autojump_clock, caplog):
    async with open_kv_house() as house:
        engine = await house.start_engine()
        number = 0

        async def fail(kind: str, times: int) -> list[str]:
            """What is said of it."""
            nonlocal number
            caplog.clear()
            house.peers.error = FetchError(kind, f"it is {kind}")
            for _ in range(times):
                number += 1
                engine.find(number, names(1), b"t")
                assert await engine.frames_found(number) == []
                engine.leave(number)
            return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

        refused = "the blocks of a ticket could not be had: it is refused"
        assert await fail("refused", 3) == [refused]
        assert await fail("layout", 2) == ["the blocks of a ticket could not be had: it is layout"]
        await trio.sleep(61)
        assert await fail("refused", 2) == [f"{refused} (and 2 more of this kind since that was said last)"]


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
