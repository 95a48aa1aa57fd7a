"""What every transport owes those who use it."""

from __future__ import annotations

import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

from actors.kv.lending import FetchError
from actors.kv.transports.shm import SharedMemory
from actors.kv.transports.tcp import Tcp
from protocol.nixl_module import nixl_module
from tests.helpers.cancelling import at_each_checkpoint
from tests.helpers.kv_peers import UNTOUCHED, contents, lend, num_descriptors, open_owner, open_reader, open_window
from tests.helpers.unruly_transport import UnrulyTransport

NIXL = {"nixl over tcp": "tcp", "nixl over cma": "posix,cma,self,tcp"}
"""What UCX is confined to. UCX connects over TCP in both cases: cma carries no messages."""
TRANSPORTS = {
    "shm": (lambda window, nursery: SharedMemory(), True),
    "tcp": (lambda window, nursery: Tcp(), False),
    "tcp over a Unix socket": (lambda window, nursery: Tcp(), True),
    "fake": (lambda window, nursery: unruly(window, nursery), False),
}


def unruly(window, nursery):
    """It writes as soon as it was told not to."""
    transport = UnrulyTransport(window, nursery)
    transport.late.set()
    return transport


@pytest.fixture
def directory():
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        yield Path(place)


@pytest.fixture(params=[*TRANSPORTS, *NIXL])
def pair(request, directory, monkeypatch):
    """Opens an owner and a reader that has only this transport: the lender, the ticket and the reader."""
    if request.param in NIXL:
        return nixl_pair(monkeypatch, NIXL[request.param])
    make, is_local = TRANSPORTS[request.param]

    @asynccontextmanager
    async def opened(sources, frame_bytes=256, num_frames=64):
        with open_window(max(sources) + 1, frame_bytes) as window:
            lender = lend(window, sources)
            async with (
                trio.open_nursery() as nursery,
                open_owner(
                    window, lender, directory if is_local else None, None if is_local else "127.0.0.1"
                ) as ticket,
                open_reader(num_frames, frame_bytes, [make(window, nursery)]) as reader,
            ):
                yield lender, ticket, reader
                nursery.cancel_scope.cancel()

    return opened


def nixl_pair(monkeypatch, tls):
    if nixl_module() is None:
        pytest.skip("NIXL is not installed")
    monkeypatch.setenv("UCX_TLS", tls)

    @asynccontextmanager
    async def opened(sources, frame_bytes=256, num_frames=64):
        with open_window(max(sources) + 1, frame_bytes) as window:
            lender = lend(window, sources)
            async with (
                open_owner(window, lender, transports=["nixl"]) as ticket,
                open_reader(num_frames, frame_bytes, transport_names=["nixl"]) as reader,
            ):
                yield lender, ticket, reader

    return opened


@pytest.mark.parametrize(
    ("num_blocks", "frame_bytes"), [(1, 64), (40, 64), (60, 4096), (30, 1 << 16), (3, 3 << 20)], ids=str
)
async def test_blocks_come_as_they_were_lent_and_nothing_else_is_written(pair, num_blocks, frame_bytes):
    sources = Random(num_blocks).sample(range(num_blocks + 4), num_blocks)
    async with pair(sources, frame_bytes, num_blocks + 3) as (lender, ticket, reader):
        Random(1).shuffle(reader.free)
        fetched = await reader.fetch(ticket, num_blocks)

        assert (fetched.num_blocks, fetched.num_bytes) == (num_blocks, num_blocks * frame_bytes)
        assert reader.blocks() == [contents(number, frame_bytes) for number in range(num_blocks)]
        assert not any(map(reader.is_written, reader.free))
        assert reader.quarantined == []
        with trio.fail_after(5):
            await lender.given_back.wait()


async def test_consecutive_frames_come_into_consecutive_frames(pair):
    async with pair(range(50), 8192) as (_, ticket, reader):
        reader.free.reverse()
        await reader.fetch(ticket, 50)

        assert reader.taken == list(range(50))
        assert reader.blocks() == [contents(number, 8192) for number in range(50)]


async def test_when_the_lease_ends_in_mid_read_what_was_read_does_not_count(pair):
    async with pair(range(4)) as (lender, ticket, reader):
        take = reader.take

        def take_and_expire(count):
            lender.expire()
            return take(count)

        reader.take = take_and_expire
        with pytest.raises(FetchError) as caught:
            await reader.fetch(ticket, 4)
        assert caught.value.kind == "expired"


@pytest.mark.parametrize("frame_bytes", [256, 1 << 17], ids=str)
async def test_cancelled_at_any_checkpoint_it_leaves_nothing_behind(pair, frame_bytes):
    async with pair(range(8), frame_bytes, 8) as (_, ticket, reader):
        await trio.testing.wait_all_tasks_blocked()
        before, num_cancelled = num_descriptors(), 0
        async for scope in at_each_checkpoint(100):
            reader.free = list(range(8))
            with scope:
                await reader.fetch(ticket, 8)
            with trio.fail_after(10):
                while reader.quarantined:
                    await trio.sleep(0.001)
            for frame in range(8):
                reader.window.frame(frame)[:] = UNTOUCHED * frame_bytes
            await trio.testing.wait_all_tasks_blocked(0.001)
            assert not any(map(reader.is_written, range(8)))
            if scope.cancelled_caught:
                assert num_descriptors() == before
                num_cancelled += 1
    assert num_cancelled >= 10


async def test_after_an_error_the_windows_can_be_closed_at_once(pair):
    async with pair(range(4)) as (lender, ticket, reader):
        lender.expire()
        with pytest.raises(FetchError) as caught:
            await reader.fetch(ticket, 4)
    assert caught.value.kind == "expired"  # and its traceback is still held
