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

from actors.kv.lending import FetchError
from protocol.errors import StartError
from protocol.ids import Epoch
from protocol.kv import KvFind, KvLayout, KvSaved
from tests.helpers.kv_actor import (
    KV_EPOCH,
    LAYOUT,
    NUM_FRAMES,
    FaultyFile,
    assert_all_is_left,
    block_bytes,
    block_name,
    kv_spec,
    names,
    open_kv_house,
)

SAVES_AND_FINDS = ("save", "save", "find", "find", "ticket")
OTHER_LAYOUT = KvLayout(b"o" * 32, 16, [64, 60])


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
        "128 bytes. Raise --kv-offloading-size, which all engines share"
    )


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
