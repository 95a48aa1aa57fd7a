"""Connectors that have the key and are broken, and strangers that have not: each costs a bounded time and one error."""

from __future__ import annotations

import os
import socket
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing
from xxhash import xxh3_64_intdigest

from actors.kv.connecting import boot_id
from actors.kv.greeting import GREETING_SECONDS, OwnerFacts, greet_owner, greet_reader
from actors.kv.lending import FetchError
from actors.kv.loans import IDLE_SECONDS
from actors.kv.peer_messages import (
    Batch,
    Confirm,
    Confirmed,
    Extend,
    Get,
    GiveBack,
    LentBlocks,
    OpenedWindow,
    OpenWindow,
    SendBlocks,
    encode,
    read_answer,
    read_question,
)
from actors.kv.peer_service import MAX_STRANGERS
from actors.kv.peers import open_peers
from actors.kv.ticket import seconds_from_now, sign
from actors.kv.transports.shm import SharedMemory
from actors.kv.transports.tcp import Tcp
from actors.kv.wire import Wire
from protocol.ids import Epoch
from protocol.kv import KV_VERSION
from protocol.kv_ticket import KvTicket
from tests.helpers.kv_peers import (
    KEY,
    LEASE,
    block_hash,
    contents,
    lend,
    num_descriptors,
    open_owner,
    open_reader,
    open_window,
    spec,
)

FRAME = 256
LENT = LentBlocks(1, [0, 1], 2, 30.0)
WHOLE = b"".join(contents(number, FRAME) for number in range(2))
CHECKSUMS = [xxh3_64_intdigest(contents(number, FRAME)) for number in range(2)]


@pytest.fixture
def directory():
    """With a path that is short enough for a socket's."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        yield Path(place)


@asynccontextmanager
async def scripted_owner(path, script, greets=True):
    """Has the key, and then does what `script(wire)` does; the ticket for it."""
    facts = OwnerFacts(KV_VERSION, "engine", Epoch(1), b"d" * 32, FRAME)
    where = {"path": str(path), "boot_id": boot_id()}
    words = KvTicket(KV_VERSION, "engine", Epoch(1), LEASE, b"d" * 32, 2, 16, seconds_from_now(30), **where)

    async def serve(listener):
        while True:
            await trio.lowlevel.wait_readable(listener)
            wire = Wire(listener.accept()[0])
            try:
                if greets:
                    await greet_reader(wire, KEY, facts)
                await script(wire)
            except FetchError:
                pass  # the reader has had enough
            finally:
                wire.close()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.setblocking(False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, listener)
            yield sign(words, KEY)
            nursery.cancel_scope.cancel()


async def hear(wire):
    return read_question(await wire.receive(1 << 20))


def says(*messages):
    """A script: one message for each question that comes, as bytes on the wire."""

    async def script(wire):
        for message in messages:
            await hear(wire)
            if isinstance(message, bytes):
                await send_raw(wire, message)
            else:
                await wire.send(encode(message))
        await until_it_ends(wire)

    return script


async def until_it_ends(wire):
    while True:
        await wire.receive(1 << 20)


async def send_raw(wire, data):
    await wire._send_all([memoryview(data)])


async def hands_over(wire, descriptor):
    await hear(wire)
    await wire.send(encode(LENT))
    await hear(wire)
    await wire.send(encode(OpenedWindow(2, None)))
    await wire.send_descriptor(descriptor)
    await until_it_ends(wire)


async def a_pipe(wire):
    read, write = os.pipe()
    try:
        await hands_over(wire, read)
    finally:
        os.close(read)
        os.close(write)


async def a_file_on_disk(wire):
    descriptor = os.open("/proc/self/exe", os.O_RDONLY)
    try:
        await hands_over(wire, descriptor)
    finally:
        os.close(descriptor)


async def less_memory(wire):
    descriptor = os.memfd_create("less")
    os.ftruncate(descriptor, FRAME)
    try:
        await hands_over(wire, descriptor)
    finally:
        os.close(descriptor)


async def no_descriptor(wire):
    await says(LENT, OpenedWindow(2, None))(wire)


async def a_byte(wire):
    await hear(wire)
    await wire.send(encode(LENT))
    await hear(wire)
    await wire.send(encode(OpenedWindow(2, None)))
    await send_raw(wire, b"\0")
    await until_it_ends(wire)


async def sends(wire, batch, data):
    await hear(wire)
    await wire.send(encode(LENT))
    await hear(wire)
    await wire.send(encode(batch))
    await send_raw(wire, data)


async def half_and_silence(wire):
    await sends(wire, Batch(2, CHECKSUMS), WHOLE[:-1])
    await until_it_ends(wire)


async def half_and_an_end(wire):
    await sends(wire, Batch(2, CHECKSUMS), WHOLE[:-1])


async def another_byte(wire):
    await sends(wire, Batch(2, CHECKSUMS), WHOLE[:-1] + b"?")
    await until_it_ends(wire)


async def more_than_asked(wire):
    await sends(wire, Batch(2, [*CHECKSUMS, 0]), WHOLE)
    await until_it_ends(wire)


async def drop_by_drop(wire):
    await sends(wire, Batch(2, CHECKSUMS), b"")
    for place in range(len(WHOLE)):
        await send_raw(wire, WHOLE[place : place + 1])
        await trio.sleep(2)


async def confirms_twice_what_was_another_question(wire):
    await sends(wire, Batch(2, CHECKSUMS), WHOLE)
    await hear(wire)
    await wire.send(encode(Confirmed(2, True)))
    await until_it_ends(wire)


async def does_not_confirm(wire):
    await sends(wire, Batch(2, CHECKSUMS), WHOLE)
    await until_it_ends(wire)


async def denies(wire):
    await sends(wire, Batch(2, CHECKSUMS), WHOLE)
    await hear(wire)
    await wire.send(encode(Confirmed(3, False)))
    await until_it_ends(wire)


async def hangs_up(wire):
    await hear(wire)


def deep(message):
    """The message with one element more, which is lists in lists."""
    encoded = encode(message)
    encoded = bytes([encoded[0] + 1]) + encoded[1:] + b"\x91" * 100_000 + b"\xc0"
    return len(encoded).to_bytes(4) + encoded


OF_ANY = {
    "lists in lists": (says(deep(LENT)), "broken"),
    "garbage": (says(b"\0\0\0\3abc"), "broken"),
    "a length without end": (says(b"\xff\xff\xff\xff"), "broken"),
    "half a message": (says(b"\0\0\0\x09ab"), "timeout"),
    "silence": (says(), "timeout"),
    "another number": (says(LentBlocks(2, [0], 2, 30.0)), "broken"),
    "another answer": (says(Confirmed(1, True)), "broken"),
    "frames it has not": (says(LentBlocks(1, [0, 2], 2, 30.0)), "broken"),
    "frames below the first": (says(LentBlocks(1, [-1], 2, 30.0)), "broken"),
    "more blocks than asked for": (says(LentBlocks(1, [0, 1, 0], 2, 30.0)), "broken"),
    "a lease of no time": (says(LentBlocks(1, [0], 2, 0.0)), "broken"),
    "an end": (hangs_up, "broken"),
}
OF_SHM = {
    "a pipe": (a_pipe, "broken"),
    "a file": (a_file_on_disk, "broken"),
    "less memory": (less_memory, "broken"),
    "no descriptor": (no_descriptor, "timeout"),
    "a byte without one": (a_byte, "broken"),
}
OF_TCP = {
    "half a block": (half_and_silence, "timeout"),
    "half a block and an end": (half_and_an_end, "broken"),
    "another byte": (another_byte, "broken"),
    "more than asked for": (more_than_asked, "broken"),
    "drop by drop": (drop_by_drop, "timeout"),
    "an answer from before": (confirms_twice_what_was_another_question, "broken"),
    "no word": (does_not_confirm, "timeout"),
    "no": (denies, "expired"),
}
CASES = [(name, Tcp, *case) for name, case in (OF_ANY | OF_TCP).items()]
CASES += [(name, SharedMemory, *case) for name, case in OF_SHM.items()]


@pytest.mark.parametrize(("transport", "script", "kind"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
async def test_a_broken_owner_costs_one_error_within_a_bounded_time(directory, autojump_clock, transport, script, kind):
    async with open_reader(transports=[transport()]) as reader, scripted_owner(directory / "s", script) as ticket:
        before = num_descriptors()
        with trio.fail_after(20), pytest.raises(FetchError) as caught:
            await reader.fetch(ticket, 2)
        assert caught.value.kind == kind
        await trio.sleep(3)  # until the slowest owner has noticed
        assert num_descriptors() == before


async def test_an_owner_that_does_not_greet_costs_a_bounded_time(directory, autojump_clock):
    async def silence(wire):
        await until_it_ends(wire)

    async with open_reader() as reader, scripted_owner(directory / "s", silence, greets=False) as ticket:
        with pytest.raises(FetchError) as caught:
            await reader.fetch(ticket, 2)
        assert caught.value.kind == "timeout"
        assert trio.current_time() <= GREETING_SECONDS + 0.1


# ------------------------------------------------------------------ readers and strangers


@pytest.fixture
async def served(directory):
    """An owner of big frames; the lender, and a function that connects to it."""
    with open_window(4, 1 << 20) as window:
        lender = lend(window, range(4))
        async with open_owner(window, lender, directory, host=None) as ticket:
            wires = []

            def connect() -> Wire:
                connected = socket.socket(socket.AF_UNIX)
                connected.connect(str(directory / "kv.sock"))
                wires.append(Wire(connected))
                return wires[-1]

            yield lender, ticket, connect
            for wire in wires:
                wire.close()


async def greeted(connect) -> Wire:
    wire = connect()
    await greet_owner(wire, KEY)
    return wire


async def ask(wire, *questions):
    """The answer to the last."""
    for question in questions:
        await wire.send(encode(question))
    return read_answer(await wire.receive(1 << 20))


def get(number=1, num_blocks=4):
    return Get(number, LEASE, [block_hash(n) for n in range(num_blocks)])


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
        encode(get()),
        len(encode(get())).to_bytes(4) + encode(get()),
    ],
    ids=["HTTP", "nothing", "a length without end", "no length", "a question without a greeting"],
)
async def test_a_stranger_gets_nothing(served, said):
    lender, _, connect = served
    wire = connect()
    await send_raw(wire, said)
    with trio.fail_after(5), pytest.raises(FetchError):
        for _ in range(3):
            assert b"LENT" not in await wire.receive(1 << 20)
    assert lender.borrowed == 0


async def test_silent_strangers_are_sent_away_and_do_not_keep_others_out_for_long(served, autojump_clock):
    _, _, connect = served
    before = num_descriptors()
    strangers = [connect() for _ in range(MAX_STRANGERS)]
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(FetchError):
        await greeted(connect)
    await trio.sleep(GREETING_SECONDS + 0.1)
    assert [wire.is_quiet() for wire in strangers] == [False] * MAX_STRANGERS
    assert await ask(await greeted(connect), get()) == LentBlocks(1, [0, 1, 2, 3], 4, 30.0)
    assert num_descriptors() <= before + MAX_STRANGERS + 3  # our ends, and one connection


@pytest.mark.parametrize(
    "questions",
    [
        [SendBlocks(1, 1)],
        [Confirm(1, 1)],
        [get(), SendBlocks(2, 5)],
        [get(), SendBlocks(2, 0)],
        [get(), Confirm(2, -1)],
        [get(), GiveBack(), Confirm(2, 1)],
    ],
    ids=lambda questions: " ".join(type(question).__name__ for question in questions),
)
async def test_who_asks_for_what_was_not_lent_is_sent_away(served, questions):
    wire = await greeted(served[2])
    with trio.fail_after(5), pytest.raises(FetchError):
        await ask(wire, *questions)
        await wire.receive(1 << 20)


@pytest.mark.parametrize(
    "said", [b"\0\0\0\3abc", b"\xff\xff\xff\xff", deep(GiveBack())], ids=["words", "length", "lists"]
)
async def test_garbage_from_who_has_the_key_ends_its_connection_only(served, caplog, said):
    _, _, connect = served
    wire = await greeted(connect)
    await send_raw(wire, said)
    with trio.fail_after(5), pytest.raises(FetchError):
        await wire.receive(1 << 20)
    assert await ask(await greeted(connect), get()) == LentBlocks(1, [0, 1, 2, 3], 4, 30.0)
    assert caplog.text == ""


async def test_a_reader_that_says_nothing_any_more_is_sent_away(served, autojump_clock):
    wire = await greeted(served[2])
    await ask(wire, get())
    await trio.sleep(IDLE_SECONDS - 1)
    assert wire.is_quiet()
    await trio.sleep(2)
    assert not wire.is_quiet()


@pytest.mark.parametrize("question", [SendBlocks(2, 4), OpenWindow(2)], ids=lambda question: type(question).__name__)
async def test_a_reader_that_takes_nothing_is_sent_away(served, autojump_clock, question):
    _, _, connect = served
    before = num_descriptors()
    wire = await greeted(connect)
    await ask(wire, get())
    with trio.fail_after(60), pytest.raises(FetchError, match="broke"):
        for _ in range(10_000):
            await wire.send(encode(question))
        await trio.sleep(30)
        await wire.send(encode(question))
    wire.close()
    await trio.testing.wait_all_tasks_blocked()
    assert num_descriptors() <= before
    assert await ask(await greeted(connect), get()) == LentBlocks(1, [0, 1, 2, 3], 4, 30.0)


async def test_a_reader_extends_a_lease_only_as_long_as_it_can_be_at_it(served, autojump_clock):
    lender, _, connect = served
    wire = await greeted(connect)
    await wire.send(encode(get()))
    await wire.receive(1 << 20)
    for _ in range(400):
        await wire.send(encode(Extend()))
        await trio.sleep(1)
    assert lender.extended == 0  # a lease of 30 s needs none for what takes 6
    assert lender.borrowed == 1


async def test_what_goes_wrong_on_one_connection_is_no_matter_for_others(served, caplog):
    lender, ticket, connect = served
    sound = lender.borrow
    lender.borrow = lambda lease_id: 1 / 0
    with pytest.raises(FetchError):
        await ask(await greeted(connect), get())
    assert "by our mistake" in caplog.text
    lender.borrow = sound
    async with open_reader(4, 1 << 20) as reader:
        assert (await reader.fetch(ticket, 4)).num_blocks == 4


async def test_a_process_that_does_not_know_the_key_is_told_once(directory, caplog):
    with open_window(2) as window:
        lender = lend(window, [0])
        async with open_peers(spec(peer_path=str(directory / "s")), window, lender) as peers:
            ticket = peers.ticket(LEASE, 1, 30.0)
            stranger = sign(msgspec.msgpack.decode(ticket[32:], type=KvTicket), b"x" * 32)
            async with open_reader(key=b"x" * 32) as reader:
                for _ in range(3):
                    with pytest.raises(FetchError) as caught:
                        await reader.fetch(stranger, 1)
                    assert caught.value.kind == "refused"
    assert caplog.text.count("was refused") == 1
    assert lender.borrowed == 0
