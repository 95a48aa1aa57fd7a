"""Calls of one response: how many at a time, in which order they are told, and what ends them."""

from __future__ import annotations

import json
import math

import msgspec
import pytest
import trio

from app.deadline import Deadline
from app.responses.event_log import EventLog
from app.responses.server_calls import CALLS_AT_ONCE, ServerCalls
from app.schemas.responses import McpCallItem
from protocol.errors import DeadlineError
from tests.helpers.app_under_test import make_tokenizer
from tests.helpers.stored_responses import make_feed


class Clockwork:
    """Tools that are called by how many seconds they take, and say when they have ended."""

    approved = listings = tools = namespaces = ()

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.cancelled: list[str] = []
        self.num_running = 0
        self.most_running = 0

    async def call(self, call: McpCallItem) -> McpCallItem:
        self.begun.append(call.name)
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            await trio.sleep(float(call.name))
        except trio.Cancelled:
            self.cancelled.append(call.name)
            raise
        finally:
            self.num_running -= 1
        if call.name == "0.5":
            raise LookupError("a bug")
        return msgspec.structs.replace(call, status="completed", output=f"{trio.current_time():g}")


def calls_of(*seconds: float) -> list[McpCallItem]:
    return [
        McpCallItem(id=f"mcp_{n}", server_label="here", name=f"{each:g}", arguments="{}", status="in_progress")
        for n, each in enumerate(seconds)
    ]


def make(box: Clockwork, log: EventLog, *, most: int | None = None, deadline: Deadline | None = None, at_once=16):
    return ServerCalls(log, box, most, deadline, make_tokenizer(), at_once=at_once)


def ends(log: EventLog) -> list[tuple[str, int]]:
    """Of calls: what is told after their arguments, and of which."""
    told = [(event.type.removeprefix("response."), json.loads(event.data)["output_index"]) for event in log.since()]
    return [(kind, index) for kind, index in told if kind in ("mcp_call.completed", "mcp_call.failed")]


async def test_calls_are_made_at_the_same_time_and_told_in_the_model_s_order(autojump_clock):
    box, log = Clockwork(), make_feed().log
    calls = make(box, log)
    calls.add_approved(calls_of(3, 1, 2))
    began = trio.current_time()

    await calls.make(1000)

    assert trio.current_time() - began == pytest.approx(3)
    assert box.begun == ["3", "1", "2"]
    assert ends(log) == [("mcp_call.completed", n) for n in range(3)]
    assert [item.id for item in log.items] == ["mcp_0", "mcp_1", "mcp_2"]
    assert all(item.status == "completed" for item in log.items)


async def test_calls_that_may_not_be_parallel_are_made_one_after_the_other(autojump_clock):
    box, log = Clockwork(), make_feed().log
    calls = make(box, log, at_once=1)
    calls.add_approved(calls_of(3, 1, 2))

    await calls.make(1000)

    assert (box.begun, box.most_running) == (["3", "1", "2"], 1)
    assert ends(log) == [("mcp_call.completed", n) for n in range(3)]


async def test_a_response_makes_so_many_calls_at_a_time_and_no_more(autojump_clock):
    box, log = Clockwork(), make_feed().log
    calls = make(box, log, at_once=CALLS_AT_ONCE)
    calls.add_approved(calls_of(*[1] * (2 * CALLS_AT_ONCE + 1)))

    await calls.make(1000)

    assert box.most_running == CALLS_AT_ONCE
    assert len(ends(log)) == 2 * CALLS_AT_ONCE + 1


async def test_the_first_calls_are_made_and_those_beyond_the_limit_are_not(autojump_clock):
    box, log = Clockwork(), make_feed().log
    calls = make(box, log, most=2)
    calls.add_approved(calls_of(3, 2, 1))

    await calls.make(1000)

    assert box.begun == ["3", "2"]
    assert ends(log) == [("mcp_call.completed", 0), ("mcp_call.completed", 1), ("mcp_call.failed", 2)]
    assert not calls.may_go_on


async def test_a_call_that_fails_in_a_way_that_nobody_expects_costs_no_other(autojump_clock, caplog):
    box, log = Clockwork(), make_feed().log
    calls = make(box, log)
    calls.add_approved(calls_of(1, 0.5, 2))

    await calls.make(1000)

    assert [item.status for item in log.items] == ["completed", "failed", "completed"]
    assert log.items[1].error.message == "Internal error; the server's log has it"
    assert "LookupError: a bug" in caplog.text


@pytest.mark.parametrize("is_late", [True, False])
async def test_all_that_are_under_way_end_together_and_what_has_been_made_is_told(is_late, autojump_clock):
    box, log = Clockwork(), make_feed().log
    end = trio.current_time() + 2
    calls = make(box, log, deadline=Deadline(end, 2, "timeout") if is_late else None)
    calls.add_approved(calls_of(5, 1, 4))

    with trio.move_on_at(math.inf if is_late else end) as scope:
        if is_late:
            with pytest.raises(DeadlineError, match="within 2 s"):
                await calls.make(1000)
        else:
            await calls.make(1000)
    calls.abandon()

    assert scope.cancelled_caught is not is_late
    assert sorted(box.cancelled) == ["4", "5"]
    assert [item.status for item in log.items] == ["incomplete", "completed", "incomplete"]
    assert ends(log) == [("mcp_call.failed", 0), ("mcp_call.completed", 1), ("mcp_call.failed", 2)]
