"""Spans on their way out cost nobody anything, and what is lost is counted and told."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import trio

from app.tracing.export import COMPLAINT_SECONDS, FLUSH_SECONDS, SEND_SECONDS, SpanExport


class Collector:
    """What is sent to it, and whether it takes it."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.reason: str | None = None
        self.is_closed = False

    def send(self, spans) -> str | None:
        self.batches.append(list(spans))
        return self.reason

    def close(self) -> None:
        self.is_closed = True

    def export(self, **options) -> SpanExport[int]:
        usual = {"max_queue": 100, "max_batch": 4, "delay": 2.0, "where": "http://there"}
        return SpanExport(self.send, self.close, in_thread=at_once, **usual | options)


async def at_once(send: Callable[[], str | None]) -> str | None:
    """Without a thread: virtual time knows of none."""
    await trio.lowlevel.checkpoint()
    return send()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="trillm.tracing")
    return caplog


async def test_spans_go_in_batches_that_are_full_or_old(autojump_clock, nursery):
    collector = Collector()
    export = collector.export()
    nursery.start_soon(export.run)
    for span in range(10):
        export.put(span)
    await trio.sleep(0.1)
    assert collector.batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    export.put(10)
    await trio.sleep(1.5)
    assert len(collector.batches) == 3
    await trio.sleep(1)
    assert collector.batches[3:] == [[10]]
    assert (export.num_exported, export.num_failed, export.num_dropped) == (11, 0, 0)


async def test_what_has_no_room_is_dropped_counted_and_told_once_a_minute(autojump_clock, log):
    export = Collector().export(max_queue=5)
    for span in range(9):
        export.put(span)
    assert (export.num_waiting, export.num_dropped) == (5, 4)
    assert len(log.messages) == 1
    await trio.sleep(COMPLAINT_SECONDS)
    export.put(9)
    assert [line.split(" spans")[0] for line in log.messages] == ["traces: 1", "traces: 4"]
    assert log.messages[1].endswith(
        "http://there: they come faster than they can be sent. Requests are answered all the same"
    )


async def test_a_collector_that_is_down_costs_one_line_a_minute(autojump_clock, nursery, log):
    collector = Collector()
    collector.reason = "Connection refused"
    export = collector.export(delay=1.0)
    nursery.start_soon(export.run)
    for _ in range(60):
        export.put(1)
        await trio.sleep(1.5)
    assert export.num_failed >= 59
    assert len(log.messages) == 2
    assert "Connection refused" in log.messages[0]


async def test_an_exporter_that_fails_in_a_way_of_its_own_costs_spans_and_no_server(autojump_clock, nursery, log):
    collector = Collector()

    def fail(spans) -> str | None:
        collector.send(spans)
        raise TypeError("no span, but a bug")

    export = SpanExport(fail, collector.close, max_queue=9, max_batch=1, delay=1, where="there", in_thread=at_once)
    nursery.start_soon(export.run)
    export.put(1)
    await trio.sleep(2)
    export.put(2)
    await trio.sleep(2)
    assert collector.batches == [[1], [2]]
    assert export.num_failed == 2
    assert "there: TypeError: no span, but a bug." in log.messages[0]


async def test_that_spans_arrive_is_told_at_first_and_after_some_were_lost(autojump_clock, nursery, log):
    collector = Collector()
    export = collector.export(delay=1.0)
    nursery.start_soon(export.run)
    for reason in (None, None, "Connection refused", "Connection refused", None, None):
        collector.reason = reason
        export.put(1)
        await trio.sleep(1.5)
    assert [line.split(":")[1].split(" ", 2)[2][:6] for line in log.messages] == ["arrive", "spans ", "arrive"]


async def test_what_is_left_is_sent_when_the_server_stops(autojump_clock):
    collector = Collector()
    export = collector.export()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(export.run)
        await trio.testing.wait_all_tasks_blocked()
        for span in range(3):
            export.put(span)
        nursery.cancel_scope.cancel()
    assert collector.batches == [[0, 1, 2]]
    assert collector.is_closed


@pytest.mark.parametrize(("seconds", "is_sent"), [(1.0, True), (FLUSH_SECONDS + 1, False)])
async def test_what_is_under_way_when_the_server_stops_has_time_to_arrive(autojump_clock, log, seconds, is_sent):
    collector = Collector()

    async def slow(send: Callable[[], str | None]) -> str | None:
        await trio.sleep(seconds)
        return send()

    export = SpanExport(
        collector.send, collector.close, max_queue=9, max_batch=1, delay=1, where="there", in_thread=slow
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(export.run)
        export.put(1)
        await trio.sleep(0.5)
        nursery.cancel_scope.cancel()
    assert collector.batches == ([[1]] if is_sent else [])
    assert export.num_exported == int(is_sent)
    lost = [line for line in log.messages if "were not sent" in line]
    assert lost == ([] if is_sent else ["traces: 1 spans were not sent to there before the server stopped"])
    assert collector.is_closed


async def test_nothing_is_tried_again_at_the_end_where_it_has_just_failed(autojump_clock, log):
    collector = Collector()
    collector.reason = "HTTP 500"
    export = collector.export()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(export.run)
        export.put(1)
        await trio.sleep(3)
        export.put(2)
        nursery.cancel_scope.cancel()
    assert collector.batches == [[1]]
    assert log.messages[-1] == "traces: 1 spans were not sent to http://there before the server stopped"


async def test_one_that_hangs_is_not_waited_for_at_the_end(autojump_clock, log):
    async def hang(send: Callable[[], str | None]) -> str | None:
        await trio.sleep_forever()
        return None

    collector = Collector()
    export = SpanExport(
        collector.send, collector.close, max_queue=9, max_batch=1, delay=1, where="there", in_thread=hang
    )
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(export.run)
        await trio.testing.wait_all_tasks_blocked()
        export.put(1)
        export.put(2)
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began == FLUSH_SECONDS
    assert collector.is_closed


async def test_one_that_hangs_is_given_up_after_a_while(autojump_clock, nursery, log):
    async def hang(send: Callable[[], str | None]) -> str | None:
        await trio.sleep_forever()
        return None

    collector = Collector()
    export = SpanExport(
        collector.send, collector.close, max_queue=9, max_batch=1, delay=1, where="there", in_thread=hang
    )
    nursery.start_soon(export.run)
    export.put(1)
    await trio.sleep(SEND_SECONDS + 2)
    assert export.num_failed == 1
    assert "no answer within 30 s" in log.messages[0]
