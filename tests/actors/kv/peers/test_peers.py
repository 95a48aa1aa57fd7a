from __future__ import annotations

import signal
import socket
import stat
import tempfile
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

from actors.kv.connecting import boot_id
from actors.kv.kept_conversations import KEPT_SECONDS
from actors.kv.lending import FetchError
from actors.kv.peers import open_peers
from actors.kv.ticket import sign
from actors.kv.transports.shm import SharedMemory
from actors.kv.transports.tcp import Tcp
from protocol.errors import StartError
from protocol.ids import Epoch
from protocol.kv_ticket import read_ticket
from tests.helpers.kv_peers import (
    KEY,
    LEASE,
    FakeLender,
    block_hash,
    contents,
    lend,
    num_descriptors,
    open_owner,
    open_reader,
    open_window,
    owner_process,
    spec,
)
from tests.helpers.unruly_transport import UnrulyTransport


@pytest.fixture
def directory():
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        yield Path(place)


@pytest.fixture
def owner_window():
    with open_window(8) as window:
        yield window


async def kind_of_failure(reader, ticket, num_blocks=4) -> str:
    with pytest.raises(FetchError) as caught:
        await reader.fetch(ticket, num_blocks)
    return caught.value.kind


def resigned(ticket: bytes, key: bytes = KEY, **changes) -> bytes:
    return sign(msgspec.structs.replace(read_ticket(ticket), **changes), key)


# ------------------------------------------------------------------ which way


async def test_on_one_machine_blocks_come_through_shared_memory_and_else_over_tcp(owner_window, directory):
    lender = lend(owner_window, [3, 1])
    async with open_owner(owner_window, lender, directory) as ticket, open_reader() as reader:
        assert (await reader.fetch(ticket, 2)).transport == "shm"
        assert (await reader.fetch(resigned(ticket, boot_id="another machine"), 2)).transport == "tcp"
        assert (await reader.fetch(resigned(ticket, path="/not/in/this/container"), 2)).transport == "tcp"
        assert reader.blocks() == [contents(number, 256) for number in range(2)]


@pytest.mark.parametrize("differs", [{"engine_id": "another"}, {"key": b"x" * 32}], ids=["engine", "key"])
async def test_a_path_that_is_somebody_else_s_in_this_container_does_not_end_it(owner_window, directory, differs):
    stranger = open_owner(owner_window, FakeLender(), directory, **differs)
    async with stranger, open_owner(owner_window, lend(owner_window, [3])) as ticket, open_reader() as reader:
        here = {"path": str(directory / "kv.sock"), "boot_id": boot_id()}
        assert (await reader.fetch(resigned(ticket, **here), 1)).transport == "tcp"


async def test_transports_are_those_of_the_spec(owner_window, directory):
    async with open_owner(owner_window, lend(owner_window, [3]), directory) as ticket:
        async with open_reader() as reader:
            assert (await reader.fetch(ticket, 1)).transport == "shm"
        with open_window(4) as window:
            async with open_peers(spec(transports=["tcp"]), window, FakeLender()) as peers:
                assert (await peers.fetch(ticket, [block_hash(0)], lambda n: [0], None)).transport == "tcp"


async def test_a_transport_that_does_not_start_is_followed_by_the_next(owner_window, directory, monkeypatch):
    async with trio.open_nursery() as nursery:
        unruly = UnrulyTransport(owner_window, nursery)
        unruly.starts = False
        async with open_owner(owner_window, lend(owner_window, [3]), directory) as ticket:
            async with open_reader(transports=[unruly, SharedMemory(), Tcp()]) as reader:
                assert (await reader.fetch(ticket, 1)).transport == "shm"
                monkeypatch.setattr("actors.kv.transports.shm.os.open", no_descriptor_left)
                assert (await reader.fetch(ticket, 1)).transport == "tcp"
            async with open_reader(transports=[unruly]) as reader:
                assert await kind_of_failure(reader, ticket) == "unreachable"
                assert reader.quarantined == []


def no_descriptor_left(*_):
    raise OSError(24, "Too many open files")


async def test_a_name_that_is_no_transport_stops_the_start(owner_window):
    with pytest.raises(StartError, match="'rdma' is no KV transport; there are shm, nixl, tcp"):
        async with open_peers(spec(transports=["rdma"]), owner_window, FakeLender()):
            pass


# ------------------------------------------------------------------ what is had


async def test_as_many_blocks_are_had_as_the_lease_has_of_those_asked_for(owner_window):
    async with open_owner(owner_window, lend(owner_window, [3, 1, 2])) as ticket, open_reader() as reader:
        assert (await reader.fetch(ticket, 5)).num_blocks == 3
        tail = [block_hash(1), block_hash(2), block_hash(9)]  # the first is here already
        assert (await reader.peers.fetch(ticket, tail, reader.take, reader.quarantine)).num_blocks == 2
        assert reader.blocks() == [contents(number, 256) for number in (1, 2)]
        other = [block_hash(9), block_hash(1)]
        fetched = await reader.peers.fetch(ticket, other, reader.take, reader.quarantine)
        assert (fetched.num_blocks, fetched.num_bytes) == (0, 0)


async def test_no_more_blocks_come_than_there_are_frames_for(owner_window):
    async with open_owner(owner_window, lend(owner_window, [3, 1, 2])) as ticket, open_reader(num_frames=2) as reader:
        assert (await reader.fetch(ticket, 3)).num_blocks == 2
        assert (await reader.fetch(ticket, 3)).num_blocks == 0


async def test_a_connector_may_fetch_from_itself(owner_window, directory):
    lender = lend(owner_window, [3])
    async with open_peers(spec(peer_path=str(directory / "s")), owner_window, lender) as peers:
        ticket = peers.ticket(LEASE, 1, 5.0)
        await peers.fetch(ticket, [block_hash(0)], lambda _: [7], lambda _: lambda: None)
    assert bytes(owner_window.frame(7)) == contents(0, 256)


async def test_many_fetch_at_once(owner_window, directory):
    lender = lend(owner_window, range(8))
    async with open_owner(owner_window, lender, directory) as ticket, open_reader(num_frames=20 * 8) as reader:
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(reader.fetch, ticket, 8)
        assert reader.free == []
        assert all(map(reader.is_written, range(20 * 8)))


# ------------------------------------------------------------------ what is refused


async def test_a_ticket_is_of_no_use_elsewhere_or_later(owner_window):
    lender = lend(owner_window, [3])
    async with open_owner(owner_window, lender) as ticket, open_reader() as reader:
        for changes, kind in (
            ({"layout_digest": b"e" * 32}, "layout"),
            ({"engine_id": "another"}, "unreachable"),
            ({"kv_epoch": Epoch(9)}, "expired"),
            ({"lease_id": "another"}, "expired"),
            ({"expires_at": 1.0}, "expired"),
            ({"host": None}, "unreachable"),
            ({"host": "nobody.invalid"}, "unreachable"),
        ):
            assert await kind_of_failure(reader, resigned(ticket, **changes)) == kind
        assert await kind_of_failure(reader, resigned(ticket, key=b"x" * 32)) == "refused"
        assert await kind_of_failure(reader, b"") == "refused"
        assert reader.taken == []


async def test_an_allowed_peer_is_asked_whoever_signed_and_has_to_know_the_key(owner_window):
    async with open_owner(owner_window, lend(owner_window, [3])) as ticket:
        foreign = resigned(ticket, key=b"somebody's router")
        allowed = [f"127.0.0.1:{read_ticket(ticket).port}"]
        async with open_reader(allowed_peers=allowed) as reader:
            assert (await reader.fetch(foreign, 1)).num_blocks == 1
        async with open_reader(allowed_peers=allowed, key=b"x" * 32) as reader:
            assert await kind_of_failure(reader, foreign) == "refused"


async def test_without_a_key_there_are_no_peers(owner_window):
    with pytest.raises(StartError, match="need a key"):
        async with open_peers(spec(key=b""), owner_window, FakeLender()):
            pass


async def test_nobody_listens_there(owner_window, directory):
    async with open_owner(owner_window, lend(owner_window, [3]), directory) as ticket:
        pass
    assert list(directory.iterdir()) == []
    async with open_reader() as reader:
        assert await kind_of_failure(reader, ticket) == "unreachable"


async def test_nobody_is_found_at_what_is_no_name(owner_window):
    async with open_owner(owner_window, lend(owner_window, [3])) as ticket, open_reader() as reader:
        assert await kind_of_failure(reader, resigned(ticket, host="a..b")) == "unreachable"


# ------------------------------------------------------------------ listeners


async def test_the_socket_is_for_us_alone_and_takes_the_place_of_one_that_was_left(owner_window, directory):
    place = directory / "private" / "kv.sock"
    place.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(place))
    async with open_owner(owner_window, lend(owner_window, [3]), place.parent, host=None) as ticket:
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
        async with open_reader() as reader:
            assert (await reader.fetch(ticket, 1)).num_blocks == 1
    assert not place.exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"peer_path": "/tmp/" + "x" * 110}, "at most 107 bytes"),
        ({"peer_path": "/proc/nowhere/kv.sock"}, "cannot be heard there"),
        ({"peer_host": "192.0.2.1"}, "cannot be heard there"),
        ({"peer_host": "nobody.invalid"}, "not an address of this host"),
        ({"peer_host": "a..b"}, "no host has such a name"),
    ],
)
async def test_a_place_where_nobody_can_be_heard_stops_the_start(owner_window, changes, reason):
    with pytest.raises(StartError, match=reason):
        async with open_peers(spec(**changes), owner_window, FakeLender()):
            pass


# ------------------------------------------------------------------ kept connections


async def test_a_connection_is_used_again_and_closed_after_a_while(owner_window, autojump_clock):
    async with open_owner(owner_window, lend(owner_window, [3])) as ticket, open_reader() as reader:
        await trio.testing.wait_all_tasks_blocked()
        before = num_descriptors()
        for _ in range(3):
            await reader.fetch(ticket, 1)
        assert num_descriptors() == before + 2  # of both ends
        await trio.sleep(2 * KEPT_SECONDS)
        assert num_descriptors() == before
        assert (await reader.fetch(ticket, 1)).num_blocks == 1


async def test_a_kept_connection_does_not_stand_for_an_owner_that_has_come_again(owner_window, directory):
    async with open_reader() as reader:
        for epoch in (1, 2):
            lender = lend(owner_window, [3])
            async with open_owner(owner_window, lender, directory, epoch=Epoch(epoch)) as ticket:
                for _ in range(2):
                    assert (await reader.fetch(ticket, 1)).num_blocks == 1


async def test_connections_that_are_kept_are_few(owner_window, directory):
    async with open_owner(owner_window, lend(owner_window, [3]), directory) as ticket, open_reader() as reader:
        before = num_descriptors()
        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(reader.fetch, ticket, 1)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert num_descriptors() <= before + 2 * 16


# ------------------------------------------------------------------ those that cannot be stopped


@pytest.mark.parametrize("how", ["cancelled", "timeout"])
async def test_what_may_be_written_late_is_in_quarantine_until_it_was(owner_window, autojump_clock, how):
    async with trio.open_nursery() as nursery:
        unruly = UnrulyTransport(owner_window, nursery)
        unruly.loses_the_end = True
        lender = lend(owner_window, [3])
        async with open_owner(owner_window, lender) as ticket, open_reader(transports=[unruly]) as reader:
            if how == "timeout":
                assert await kind_of_failure(reader, ticket) == "timeout"
                assert lender.extended == 0  # 5 s are a small part of the lease
            else:
                with trio.move_on_after(1):
                    await reader.fetch(ticket, 1)
            assert reader.quarantined == reader.taken != []
            await trio.testing.wait_all_tasks_blocked()
            assert reader.quarantined == reader.taken
            unruly.late.set()
            await trio.testing.wait_all_tasks_blocked()
            assert reader.quarantined == []


async def test_a_lease_is_extended_while_somebody_is_at_it(owner_window, autojump_clock):
    async with trio.open_nursery() as nursery:
        unruly = UnrulyTransport(owner_window, nursery, delay=4)
        lender = lend(owner_window, [3])
        owner = open_owner(owner_window, lender, lease_seconds=3.0)
        async with owner as ticket, open_reader(transports=[unruly]) as reader:
            await reader.fetch(ticket, 1)
        assert lender.extended == 3


# ------------------------------------------------------------------ owners that are processes


@pytest.mark.process
@pytest.mark.parametrize("how", ["shm", "tcp"])
async def test_an_owner_that_is_killed_or_stopped_costs_a_few_seconds_and_no_more(directory, how, monkeypatch):
    monkeypatch.setattr("actors.kv.conversation.ANSWER_SECONDS", 0.5)
    transport = SharedMemory() if how == "shm" else Tcp()
    async with (
        owner_process(directory, 16, 1 << 20) as (process, ticket),
        open_reader(32, 1 << 20, [transport]) as reader,
    ):
        before = num_descriptors()
        await reader.fetch(ticket, 8)
        assert reader.blocks() == [contents(number, 1 << 20) for number in range(8)]

        take = reader.take

        def stopping(count):
            process.send_signal(signal.SIGSTOP)
            return take(count)

        reader.take = stopping
        with trio.fail_after(5):
            assert await kind_of_failure(reader, ticket, 8) == "timeout"
        process.send_signal(signal.SIGCONT)
        reader.take = take
        reader.free = list(range(32))
        await reader.fetch(ticket, 8)

        def killing(count):
            process.kill()
            return take(count)

        reader.take = killing
        with trio.fail_after(5):
            assert await kind_of_failure(reader, ticket, 8) == "broken"
        reader.take = take
        await process.wait()
        assert await kind_of_failure(reader, ticket, 8) == "unreachable"
        assert num_descriptors() <= before
