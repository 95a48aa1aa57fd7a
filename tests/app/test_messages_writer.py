"""Parts as blocks and events, in the order that Anthropic's clients demand. What the client makes of a stream is the
plain answer.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import trio
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from app.answer import Answer
from app.engine import Prompt
from app.head import Head
from app.messages_writer import MessagesWriter
from app.parts import CallPiece, Content, Part, Reasoning
from app.schemas.messages import MessagesAnswer
from protocol.ids import FIRST_ENGINE, EngineIndex, RequestId
from protocol.messages import FinishReason, RequestOutput
from protocol.sampling import SamplingParams
from tests.helpers.app_under_test import make_app

METRICS = make_app().services.metrics
EVENT = TypeAdapter(RawMessageStreamEvent)
CALL = [CallPiece(0, '{"city": ', "call_1", "weather"), CallPiece(0, '"Oslo"}')]
SECOND = [CallPiece(1, "", "call_2", "now"), CallPiece(1, "{}")]


@define
class Script:
    """A generation and the reader of its only choice: one output for each list of parts."""

    steps: list[list[Part]]
    finish_reason: FinishReason = FinishReason.STOP
    stop_reason: int | str | None = None
    told_reason: str | None = None
    """What the reader makes of it."""
    num_reasoning_tokens: int = 0
    done: int = field(default=0, init=False)

    @property
    def finished(self) -> bool:
        return self.done == len(self.steps)

    def engine(self, index: int) -> EngineIndex:
        return FIRST_ENGINE

    async def receive(self) -> list[tuple[int, RequestOutput]]:
        await trio.lowlevel.checkpoint()
        self.done += 1
        output = RequestOutput(
            RequestId("r"),
            self.done - 1,
            [7],
            str(self.done - 1),
            finish_reason=self.finish_reason if self.finished else None,
            stop_reason=self.stop_reason if self.finished else None,
            num_cached_tokens=3,
        )
        return [(0, output)]

    def feed(self, output: RequestOutput) -> list[Part]:
        return self.steps[int(output.text)]

    def finish_reason_of(self, reason: str) -> str:
        return self.told_reason or reason


@define
class Reader:
    script: Script

    @property
    def num_reasoning_tokens(self) -> int:
        return self.script.num_reasoning_tokens

    def feed(self, output: RequestOutput) -> list[Part]:
        return self.script.feed(output)

    def finish_reason(self, reason: str) -> str:
        return self.script.finish_reason_of(reason)


def writer_of(script: Script, tells_thoughts: bool = True) -> tuple[MessagesWriter, Answer]:
    prompts = [Prompt([1, 2, 3, 4, 5], SamplingParams(max_tokens=8, seed=1))]
    answer = Answer(script, prompts, 1, METRICS)
    return MessagesWriter(Head("msg-1", 0, "m", "f"), Reader(script), answer, tells_thoughts=tells_thoughts), answer


async def whole(*steps: list[Part], tells_thoughts: bool = True, **more: Any) -> MessagesAnswer:
    return await writer_of(Script(list(steps), **more), tells_thoughts)[0].whole()


async def streamed(*steps: list[Part], tells_thoughts: bool = True, **more: Any) -> list[dict[str, Any]]:
    """What each event holds; its name is checked."""
    writer, answer = writer_of(Script(list(steps), **more), tells_thoughts)
    frames: list[bytes] = []
    while not answer.finished:
        frames += writer.frames(await answer.receive())
    frames += writer.closing()
    events = []
    for frame in frames:
        name, data, *rest = frame.decode().split("\n")
        assert rest == ["", ""]
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def short(events: list[dict[str, Any]]) -> list[Any]:
    """Of what lies between the ping and the end of the message."""
    assert [event["type"] for event in events[:2]] == ["message_start", "ping"]
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    found: list[Any] = []
    for event in events[2:-2]:
        if event["type"] == "content_block_delta":
            found.append((event["index"], *event["delta"].values()))
        elif event["type"] == "content_block_start":
            found.append((event["index"], "start", event["content_block"]))
        else:
            found.append((event["index"], "stop"))
    return found


async def test_thoughts_text_and_calls_are_blocks_one_after_the_other() -> None:
    steps = [[Reasoning("Let ")], [], [Reasoning("me"), Content("I ")], [Content("look."), CALL[0]], [CALL[1], *SECOND]]
    assert short(await streamed(*steps)) == [
        (0, "start", {"type": "thinking", "thinking": "", "signature": ""}),
        (0, "thinking_delta", "Let "),
        (0, "thinking_delta", "me"),
        (0, "signature_delta", ""),
        (0, "stop"),
        (1, "start", {"type": "text", "text": ""}),
        (1, "text_delta", "I "),
        (1, "text_delta", "look."),
        (1, "stop"),
        (2, "start", {"type": "tool_use", "id": "call_1", "name": "weather", "input": {}}),
        (2, "input_json_delta", '{"city": '),
        (2, "input_json_delta", '"Oslo"}'),
        (2, "stop"),
        (3, "start", {"type": "tool_use", "id": "call_2", "name": "now", "input": {}}),
        (3, "input_json_delta", "{}"),
        (3, "stop"),
    ]


async def test_an_answer_without_anything_has_no_block() -> None:
    assert short(await streamed([])) == []
    assert (await whole([])).content == []


async def test_text_after_a_call_is_a_block_of_its_own() -> None:
    kinds = [block.__struct_config__.tag for block in (await whole([Content("a"), *CALL, Content("b")])).content]
    assert kinds == ["text", "tool_use", "text"]


async def test_thoughts_that_nobody_wants_leave_no_trace() -> None:
    steps = [[Reasoning("Let me"), Content("I")]]
    answer = await whole(*steps, tells_thoughts=False)
    assert [block.__struct_config__.tag for block in answer.content] == ["text"]
    assert "thinking" not in json.dumps((await streamed(*steps, tells_thoughts=False))[:-2])


async def test_usage_tells_the_cached_tokens_apart() -> None:
    steps: list[list[Part]] = [[Reasoning("a")], [Content("b")]]
    usage = (await whole(*steps, num_reasoning_tokens=1)).usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (2, 3, 2)
    assert usage.output_tokens_details.thinking_tokens == 1
    events = await streamed(*steps, num_reasoning_tokens=1)
    start, end = events[0]["message"]["usage"], events[-2]["usage"]
    assert (start["input_tokens"], start["cache_read_input_tokens"], start["output_tokens"]) == (2, 3, 1)
    assert end["output_tokens"] == 2
    assert end["output_tokens_details"] == {"thinking_tokens": 1}


@pytest.mark.parametrize(
    ("finish_reason", "stop_reason", "told_reason", "expected"),
    [
        (FinishReason.STOP, None, None, ("end_turn", None)),
        (FinishReason.STOP, 5, None, ("end_turn", None)),
        (FinishReason.STOP, "END", None, ("stop_sequence", "END")),
        (FinishReason.LENGTH, None, None, ("max_tokens", None)),
        (FinishReason.STOP, None, "tool_calls", ("tool_use", None)),
        (FinishReason.STOP, "END", "tool_calls", ("tool_use", None)),
    ],
)
async def test_why_an_answer_has_ended(finish_reason: Any, stop_reason: Any, told_reason: Any, expected: Any) -> None:
    more = {"finish_reason": finish_reason, "stop_reason": stop_reason, "told_reason": told_reason}
    answer = await whole([Content("a")], **more)
    assert (answer.stop_reason, answer.stop_sequence) == expected
    events = await streamed([Content("a")], **more)
    assert tuple(events[-2]["delta"].values()) == expected
    assert events[0]["message"]["stop_reason"] is None


@pytest.mark.parametrize(
    "arguments", ['{"a": ', "[1]", "1", "null", '{"a": ' + "[" * 200 + "]" * 200 + "}", "{'a': 1}"]
)
async def test_arguments_that_are_no_object_are_told_as_the_text_they_are(arguments: str) -> None:
    (block,) = (await whole([CallPiece(0, arguments, "c", "f")])).content
    assert block.input == {"INVALID_JSON": arguments}


async def test_a_call_may_have_no_arguments_and_any_number_in_them() -> None:
    for arguments, expected in (
        ("", {}),
        ('{"n": 123456789012345678901234567890}', {"n": 123456789012345678901234567890}),
    ):
        (block,) = (await whole([CallPiece(0, arguments, "c", "f")])).content
        assert block.input == expected


TEXTS = st.text(st.sampled_from('a"\\\n\u2028船é\x00'), min_size=1, max_size=6)


@st.composite
def steps(draw: Any) -> list[list[Part]]:
    """Parts as readers make them, in outputs of some each."""
    parts: list[Part] = []
    for index in range(draw(st.integers(0, 4))):
        match draw(st.sampled_from(["thoughts", "text", "call"])):
            case "thoughts":
                parts += map(Reasoning, draw(st.lists(TEXTS, min_size=1, max_size=3)))
            case "text":
                parts += map(Content, draw(st.lists(TEXTS, min_size=1, max_size=3)))
            case "call":
                arguments = json.dumps({"x": draw(TEXTS), "y": [draw(st.integers()), None]})
                cut = draw(st.integers(0, len(arguments)))
                parts += [CallPiece(index, arguments[:cut], f"c{index}", "f"), CallPiece(index, arguments[cut:])]
    found: list[list[Part]] = [[]]
    for part in parts:
        if draw(st.booleans()):
            found.append([])
        found[-1].append(part)
    return found


@given(steps())
def test_what_the_client_makes_of_a_stream_is_the_plain_answer(script: list[list[Part]]) -> None:
    async def both() -> tuple[Any, Any]:
        return await whole(*script), await streamed(*script)

    plain, events = trio.run(both)
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in events:
        if event["type"] != "ping":  # which the client's stream leaves out
            parsed = EVENT.validate_python(event)
            snapshot = accumulate_event(event=parsed, current_snapshot=snapshot, json_bufs=buffers)
    again = Message.model_validate_json(msgspec.json.encode(plain))
    assert snapshot.to_dict(exclude_none=True) == again.to_dict(exclude_none=True)
