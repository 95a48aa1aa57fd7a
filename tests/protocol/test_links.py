"""ZMQ links behave as trio channels: nothing lost, doubled or out of order, whatever is cancelled or garbled."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import zmq
from trio.testing import wait_all_tasks_blocked

from protocol.codec import ENGINE_INPUT, ENGINE_OUTPUT
from protocol.engine_stats import EngineStats
from protocol.links import FrameTooLargeError, Links, open_links, receive_batch, send_in_parts
from protocol.messages import AbortRequest, EngineHeartbeat

pytestmark = pytest.mark.process  # real sockets: real time, and a deadline


@pytest.fixture
def links() -> Iterator[Links]:
    with open_links() as links:
        yield links


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/s"


def a_message(number: int) -> AbortRequest:
    return AbortRequest(1, 0, [str(number)])


def a_heartbeat(number: int) -> EngineHeartbeat:
    return EngineHeartbeat(1, 0, number, EngineStats())


async def test_messages_arrive_in_order_and_once(links, address):
    receiver, sender = links.pull(address, ENGINE_INPUT), links.push(address, ENGINE_INPUT)
    for number in range(5000):
        sender.send_nowait(a_message(number))

    assert [await receiver.receive() for _ in range(5000)] == [a_message(n) for n in range(5000)]
    with pytest.raises(trio.WouldBlock):
        receiver.receive_nowait()


async def test_cancelled_receives_lose_nothing(links, address):
    receiver, sender = links.pull(address, ENGINE_INPUT), links.push(address, ENGINE_INPUT)
    received = []
    chance = random.Random(1)

    async def send():
        for number in range(2000):
            sender.send_nowait(a_message(number))
            if number % 7 == 0:
                await trio.sleep(chance.random() / 2000)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        while len(received) < 2000:
            with trio.move_on_after(chance.random() / 1000):
                received.append(await receiver.receive())

    assert received == [a_message(n) for n in range(2000)]


async def test_a_batch_is_all_that_is_there_and_no_more_than_the_limit(links, address):
    receiver, sender = links.pull(address, ENGINE_INPUT), links.push(address, ENGINE_INPUT)
    for number in range(10):
        sender.send_nowait(a_message(number))
    batches = []
    while sum(map(len, batches)) < 10:
        batches.append(await receive_batch(receiver, limit=4))

    assert max(map(len, batches)) <= 4
    assert [m for batch in batches for m in batch] == [a_message(n) for n in range(10)]


async def test_garbage_is_counted_and_dropped(links, address):
    receiver, sender = links.pull(address, ENGINE_INPUT), links.push(address, ENGINE_INPUT)
    with zmq.Context() as context, context.socket(zmq.PUSH) as stranger:
        stranger.connect(address)
        for frame in (b"", b"\xc1", b"\x93\xa7UNKNOWN\x01\x02", b"x" * 100_000):
            stranger.send(frame)
        while receiver.statistics().garbage < 4:
            with pytest.raises(trio.WouldBlock):
                receiver.receive_nowait()
            await trio.sleep(0.01)
    sender.send_nowait(a_message(1))

    assert await receiver.receive() == a_message(1)
    assert receiver.statistics().garbage == 4


async def test_a_subscription_is_seen_before_anything_is_published_and_nothing_is_lost(links, address):
    publisher = links.publish(address, ENGINE_OUTPUT)
    subscriber = links.subscribe(address, ENGINE_OUTPUT)
    received = []

    async def hear():
        while True:
            received.extend(await receive_batch(subscriber))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hear)
        assert await publisher.receive() is True
        for number in range(20_000):
            publisher.send_nowait(a_heartbeat(number))
        while len(received) < 20_000:
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()

    assert [m.next_seq for m in received] == list(range(20_000))


async def test_a_publisher_that_is_busy_sending_still_sees_its_subscriber_come_and_go(links, tmp_path):
    """Sending swallows the socket's edge: the task that waits for subscriptions has to be woken all the same."""
    for round_ in range(30):
        publisher = links.publish(f"ipc://{tmp_path}/{round_}", ENGINE_OUTPUT)
        seen = []

        async def watch(publisher=publisher, seen=seen):
            while True:
                seen.append(await publisher.receive())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await wait_all_tasks_blocked()
            subscriber = links.subscribe(f"ipc://{tmp_path}/{round_}", ENGINE_OUTPUT)
            for expected in ([True], [True, False]):
                while seen != expected:
                    publisher.send_nowait(a_heartbeat(0))
                    await trio.sleep(0.001)
                subscriber.close()
            nursery.cancel_scope.cancel()
        publisher.close()


async def test_closing_wakes_the_receiver(links, address):
    receiver = links.pull(address, ENGINE_INPUT)

    async def expect_closed():
        with pytest.raises(trio.ClosedResourceError):
            await receiver.receive()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(expect_closed)
        await wait_all_tasks_blocked()
        receiver.close()
        receiver.close()
    with pytest.raises(trio.ClosedResourceError):
        receiver.receive_nowait()


async def test_a_second_receiver_is_refused(links, address):
    receiver = links.pull(address, ENGINE_INPUT)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receiver.receive)
        await wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await receiver.receive()
        nursery.cancel_scope.cancel()


def test_an_address_that_cannot_be_spelt_is_refused_and_the_end_of_the_links_waits_for_nothing(tmp_path):
    with open_links() as links, pytest.raises(UnicodeEncodeError):  # as paths are that are not in the locale's encoding
        links.pull(f"ipc://{tmp_path}/\udcfc", ENGINE_INPUT)


async def test_sending_before_the_receiver_is_there_is_no_loss_and_after_closing_an_error(links, address):
    sender = links.push(address, ENGINE_INPUT)
    sender.send_nowait(a_message(1))
    receiver = links.pull(address, ENGINE_INPUT)

    assert await receiver.receive() == a_message(1)
    sender.close()
    with pytest.raises(trio.ClosedResourceError):
        sender.send_nowait(a_message(2))


async def test_an_oversized_message_is_refused_where_it_is_sent(links, address, monkeypatch):
    receiver, sender = links.pull(address, ENGINE_INPUT), links.push(address, ENGINE_INPUT)
    monkeypatch.setattr("protocol.links.MAX_FRAME_BYTES", 1000)
    with pytest.raises(FrameTooLargeError, match="the limit is 1000"):
        sender.send_nowait(AbortRequest(1, 0, ["x" * 2000]))
    sender.send_nowait(a_message(1))

    assert await receiver.receive() == a_message(1)


async def test_a_stranger_s_oversized_frame_costs_only_the_stranger(links, address, monkeypatch):
    monkeypatch.setattr("protocol.links.MAX_FRAME_BYTES", 1000)
    receiver, sender = links.pull(address, ENGINE_INPUT), links.push(address, ENGINE_INPUT)
    with zmq.Context() as context, context.socket(zmq.PUSH) as stranger:
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.connect(address)
        stranger.send(b"x" * 2000)
        sender.send_nowait(a_message(1))

        assert await receiver.receive() == a_message(1)


def test_a_message_of_many_items_is_sent_in_parts_and_what_is_too_large_alone_is_shortened():
    sent = []

    def send(items):
        if sum(items) > 10:
            raise FrameTooLargeError
        sent.append(items)

    send_in_parts([1, 2, 50, 3, 4, 5], send, lambda item: 0)

    assert [item for part in sent for item in part] == [1, 2, 0, 3, 4, 5]
    assert len(sent) < 6


async def test_other_bytes_on_a_publisher_are_no_subscription_that_ends(links, address):
    publisher, subscriber = links.publish(address, ENGINE_OUTPUT), links.subscribe(address, ENGINE_OUTPUT)
    assert await publisher.receive() is True
    with zmq.Context() as context, context.socket(zmq.XSUB) as stranger:
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.connect(address)
        for frame in (b"", b"\x00nonsense", b"\x01nonsense", b"\x07", b"x" * 1000):
            stranger.send(frame)
        with trio.move_on_after(0.3):
            await publisher.receive()
            raise AssertionError("a stranger's bytes counted as our subscriber's")
    publisher.send_nowait(a_heartbeat(1))

    assert await subscriber.receive() == a_heartbeat(1)
