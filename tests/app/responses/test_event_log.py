"""Numbers, items, and the one end of a response."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.responses.event_log import EventLog
from app.schemas.response_events import (
    McpCallArgumentsDelta,
    McpCallArgumentsDone,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
)
from app.schemas.responses import McpCallItem, MessageItem, OutputText, Response, ToldText, ToldTextFormat


def make_log(status="in_progress", **options) -> EventLog:
    text = ToldText(ToldTextFormat("text"))
    return EventLog(Response(id="resp_1", created_at=1, status=status, model="m", text=text), **options)


def delta(text: str) -> OutputTextDelta:
    return OutputTextDelta("msg_1", 0, delta=text)


def told(log: EventLog) -> list[str]:
    return [event.type.removeprefix("response.") for event in log.since()]


def test_events_are_numbered_from_0_by_one_and_know_their_numbers():
    log = make_log()
    log.begin()
    log.run()
    log.append(delta("a"))
    log.settle("completed")
    log.publish()

    assert told(log) == ["created", "in_progress", "output_text.delta", "completed"]
    assert [event.number for event in log.since()] == [0, 1, 2, 3]
    assert [json.loads(event.data)["sequence_number"] for event in log.since()] == [0, 1, 2, 3]
    assert log.since()[2].frame.startswith(b"event: response.output_text.delta\ndata: {")


def test_a_response_in_the_background_is_queued_first():
    log = make_log("queued")
    log.begin()
    assert log.response.status == "queued"
    log.run()
    assert told(log) == ["created", "queued", "in_progress"]
    assert log.response.status == "in_progress"


def test_the_response_has_its_items_as_far_as_they_are_known():
    log = make_log()
    log.append(OutputItemAdded(output_index=0, item=MessageItem(id="msg_1", status="in_progress")))
    assert log.response.output == [MessageItem(id="msg_1", status="in_progress")]
    for text in ("H", "i", " there"):
        log.append(delta(text))
        told = log.response.output[0]
    assert told == MessageItem(id="msg_1", status="in_progress", content=[OutputText("Hi there")])
    whole = MessageItem(id="msg_1", status="completed", content=[OutputText("Hi")])
    log.append(OutputItemDone(output_index=0, item=whole))
    assert log.response.output == [whole]

    call = McpCallItem(id="mcp_1", server_label="one", name="add", arguments="", status="in_progress")
    log.append(OutputItemAdded(output_index=1, item=call))
    log.append(McpCallArgumentsDelta("mcp_1", 1, delta='{"a":'))
    log.append(McpCallArgumentsDelta("mcp_1", 1, delta=" 1}"))
    log.append(McpCallArgumentsDone("mcp_1", 1, arguments='{"a": 1}'))
    assert log.response.output == [whole, msgspec.structs.replace(call, arguments='{"a": 1}')]


def test_an_end_is_settled_before_readers_are_told_and_only_once():
    log = make_log()
    log.begin()
    log.settle("incomplete", incomplete="max_output_tokens", completed_at=5)
    log.settle("completed")

    assert log.response.status == "incomplete"
    assert log.response.completed_at is None
    assert (log.last.number, log.last.type) == (1, "response.incomplete")
    assert told(log) == ["created"]
    assert not log.ended

    log.publish()
    log.publish()
    assert told(log) == ["created", "incomplete"]
    assert log.ended
    with pytest.raises(AssertionError):
        log.append(delta("late"))


@pytest.mark.parametrize(
    ("status", "event"),
    [("completed", "completed"), ("failed", "failed"), ("incomplete", "incomplete"), ("cancelled", "incomplete")],
)
def test_every_status_has_an_event_that_openai_s_clients_know(status, event):
    log = make_log()
    log.settle(status)
    log.publish()
    assert told(log) == [event]
    assert json.loads(log.since()[0].data)["response"]["status"] == status


def test_a_log_that_keeps_no_events_keeps_items_and_the_end():
    log = make_log(keeps_events=False)
    log.begin()
    log.append(OutputItemAdded(output_index=0, item=MessageItem(id="msg_1", status="in_progress")))
    log.settle("completed")
    log.publish()
    assert (log.since(), log.num_events, len(log.items), log.ended) == ([], 3, 1, True)


@given(st.integers(0, 20), st.integers(-1, 25), st.integers(-1, 25))
def test_whatever_is_forgotten_the_rest_is_found_by_its_number(num_events, forgotten, starting_after):
    log = make_log()
    for number in range(num_events):
        log.append(delta(str(number)))
    log.forget(forgotten)
    left = [event.number for event in log.since(starting_after)]
    assert left == [number for number in range(num_events) if number > max(forgotten, starting_after)]
