"""A connector that has a disk, over its restarts and all that goes wrong there; in virtual time."""

from __future__ import annotations

import errno
import logging
from collections import deque
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors.kv.disk_file import BLOCKS
from actors.kv.lending import FetchError
from tests.helpers.kv_actor import (
    LAYOUT,
    NUM_FRAMES,
    FaultyFile,
    Gate,
    assert_all_is_left,
    block_name,
    kv_spec,
    names,
    open_kv_house,
)


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


async def test_the_log_tells_what_was_found_on_the_disk(autojump_clock, tmp_path: Path, caplog):
    async with open_kv_house(kv_spec(tmp_path)) as house:
        (await house.start_engine()).save(names(1, 2))
    caplog.set_level(logging.INFO)
    async with open_kv_house(kv_spec(tmp_path, disk_bytes=3 * 2**29)) as house:
        await house.start_engine()
        await wait_all_tasks_blocked()

        assert f"{tmp_path} has 2 KV blocks in 0.00 GiB, and may have 1.50 GiB" in caplog.text


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
