"""Calls as Hermes and Qwen models write them."""

from __future__ import annotations

import pytest

from app.dialects.hermes import HermesText
from app.parts import Content, Part
from protocol.messages import FinishReason
from tests.app.dialects.reading import NAMES, call, finish_reason, read

OSLO = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
PLAIN = '<tool_call>\n{"arguments": {}, "name": "plain.thing"}\n</tool_call>'


def make() -> HermesText:
    return HermesText(NAMES)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (OSLO, [call(0, "weather", '{"city": "Oslo"}')]),
        (OSLO + "\n" + PLAIN, [call(0, "weather", '{"city": "Oslo"}'), call(1, "plain.thing", "{}")]),
        ("\n\n" + PLAIN + OSLO, [call(0, "plain.thing", "{}"), call(1, "weather", '{"city": "Oslo"}')]),
        ("Let me see.\n" + OSLO + "\n", [Content("Let me see.\n"), call(0, "weather", '{"city": "Oslo"}')]),
        (OSLO + " Done.", [call(0, "weather", '{"city": "Oslo"}'), Content(" Done.")]),
        (
            '<tool_call>{"name": "weather", "arguments": {"a": "</tool_call> {\\" é😀", "b": [{"c": 1}]}}</tool_call>',
            [call(0, "weather", '{"a": "</tool_call> {\\" é😀", "b": [{"c": 1}]}')],
        ),
        ('<tool_call>{"name": "weather", "arguments": "{\\"a\\": 1}"}</tool_call>', [call(0, "weather", '{"a": 1}')]),
        ('<tool_call>{"name": "weather"}</tool_call>', [call(0, "weather", "{}")]),
        ('<tool_call>{"name": "weather", "arguments": null}', [call(0, "weather", "{}")]),
    ],
)
def test_calls_and_text_around_them_are_told_apart(text: str, parts: list[Part]) -> None:
    assert read(make(), [text]) == parts
    assert finish_reason(make, text) == "tool_calls"
    assert finish_reason(make, text, FinishReason.LENGTH) == "length"


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>weather(Oslo)</tool_call>",
        '<tool_call>{"name": "nosuch", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "weather", "name": "weather"}</tool_call>',
        '<tool_call>{"city": "Oslo"}</tool_call>',
        '<tool_call>{"name": "weather", "argum',
        "<tool_call>",
        "</tool_call>",
        "1 < 2 and <tool_",
        "  \n",
    ],
)
def test_what_only_looks_like_a_call_is_content(text: str) -> None:
    assert read(make(), [text]) == [Content(text)]
    assert finish_reason(make, text) == "stop"


@pytest.mark.parametrize("end", range(1, len(OSLO)))
def test_a_call_that_is_cut_anywhere_ends_with_length_and_leaks_no_mark_up(end: int) -> None:
    text = OSLO[:end]
    parts = read(make(), [text], cut=True)
    assert finish_reason(make, text, FinishReason.LENGTH) == "length"
    if len("<tool_call>") <= end:
        assert not any(isinstance(part, Content) for part in parts)


def test_a_call_that_turns_bad_after_it_began_is_no_reason_to_call_anything() -> None:
    for text in (
        '<tool_call>{"name": "weather", "arguments": {"city": }}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": {"city": "Os]}',
        '<tool_call>{"name": "weather", "arguments": {"city": 1]}</tool_call>',
        OSLO + '<tool_call>{"name": "weather", "arguments": {"city',
    ):
        assert finish_reason(make, text) == "stop"
    assert read(make(), ['<tool_call>{"name": "weather", "arguments": {"city": 1]} x']) == [
        call(0, "weather", '{"city": 1'),
        Content("]} x"),
    ]


def test_arguments_are_told_as_they_come() -> None:
    parser = make()
    parser.feed('<tool_call>{"name": "weather", "arguments": {"city": "')
    assert [part.arguments for part in parser.feed("a long ")] == ["a long "]
    assert [part.arguments for part in parser.feed("name")] == ["name"]


def test_a_mark_that_is_a_control_token_is_never_content() -> None:
    assert read(HermesText(NAMES, {"<tool_call>", "</tool_call>"}), ["<tool_call>no</tool_call>"]) == [Content("no")]
