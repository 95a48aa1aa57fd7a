"""The events of a response add up to what it is, whatever pieces the model's text comes in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.responses.cut_off import SERVER_DIED, cut_off
from app.responses.stored import StoredResponse
from tests.app.test_responses import CALL, MCP, PATH, WEATHER, Box, adding, events, scripted, with_box

ENDS = ("response.completed", "response.incomplete", "response.failed")
TEXTS = {
    "everything": "<think>\nSnow?\n</think>\n\nLet me.\n" + adding(1) + CALL + adding(2) + " tail",
    "only thoughts": "<think>only thoughts",
    "a call that is cut": adding(1).removesuffix("}\n</tool_call>"),
    "no call": "<tool_call>{bad}</tool_call> ok",
}


async def told(text: str, tokens_per_delta: int, **fields: Any) -> list[dict[str, Any]]:
    under_test = with_box(scripted(text, "Done.", tokens_per_delta=tokens_per_delta), Box())
    return events(await under_test.post(PATH, input="Hi", tools=[MCP, WEATHER], stream=True, **fields))


def added_up(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items, from their events alone; each is open from its first event to its last."""
    is_open: dict[int, str] = {}
    done: dict[int, dict[str, Any]] = {}
    for event in found:
        kind, index = event["type"], event.get("output_index")
        if kind == "response.output_item.added":
            assert index == len(is_open) + len(done)
            is_open[index] = ""
        elif kind == "response.output_item.done":
            item = done[index] = event["item"]
            whole = item.get("arguments") or "".join(part["text"] for part in item.get("content", ()))
            assert is_open.pop(index) == whole
        elif index is not None:
            is_open[index] += event.get("delta", "")
    assert is_open == {}
    return [done[index] for index in range(len(done))]


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in items]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_items_are_what_their_events_say_however_the_text_is_cut(text: str) -> None:
    answers = []
    for tokens_per_delta, fields in ((1, {}), (3, {}), (50, {}), (2, {"stream_interval": 5})):
        found = await told(text, tokens_per_delta, **fields)
        assert [event["type"] in ENDS for event in found] == [False] * (len(found) - 1) + [True]
        output = found[-1]["response"]["output"]
        assert added_up(found) == output
        answers.append(without_ids(output))
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_wherever_its_server_dies_a_response_is_what_its_events_say(text: str) -> None:
    found = await told(text, 2)
    begun = found[0]["response"]
    row = StoredResponse(begun["id"], "in_progress", json.dumps(begun).encode(), b"[]", None, True)
    recorded = [(event["sequence_number"], json.dumps(event).encode()) for event in found]
    for num_recorded in range(len(found)):
        failed, ends = cut_off(row, recorded[:num_recorded])
        whole = [json.loads(event) for _, event in [*recorded[:num_recorded], *ends]]
        assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
        assert [number for number, _ in ends] == list(range(num_recorded, len(whole)))
        response = json.loads(failed.response)
        assert whole[-1] == {
            "type": "response.failed",
            "sequence_number": len(whole) - 1,
            "response": response,
        }
        assert response == begun | {
            "status": "failed",
            "error": {"code": "server_error", "message": SERVER_DIED},
            "output": added_up(whole),
        }
        assert failed.status == "failed"
        done = [event["item"] for event in found[:num_recorded] if event["type"] == "response.output_item.done"]
        assert all(item in done or item.get("status", "incomplete") == "incomplete" for item in response["output"])
        assert all(item in response["output"] for item in done)
