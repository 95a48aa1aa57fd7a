"""Calls as Qwen 3 Coder writes them."""

from __future__ import annotations

import json

import pytest

from app.dialects.qwen3_coder import Qwen3CoderText
from app.parts import CallPiece, Content
from protocol.messages import FinishReason
from tests.app.dialects.reading import call, finish_reason, read

SCHEMA = {"properties": {"days": {"type": "integer"}, "of": {"type": "array"}, "city": {"type": "string"}}}
OSLO = (
    '<tool_call>\n<function=weather>\n<parameter=city>\nOslo "N"\n\n</parameter>\n<parameter=days>\n3\n</parameter>\n'
    "<parameter=of>\n['x']\n</parameter>\n<parameter=free>\n12\n</parameter>\n</function>\n</tool_call>"
)
ARGUMENTS = {"city": 'Oslo "N"\n', "days": 3, "of": "['x']", "free": "12"}


def make() -> Qwen3CoderText:
    return Qwen3CoderText({"weather": SCHEMA, "plain.thing": None})


def test_parameters_become_what_the_schema_says_they_are() -> None:
    [found] = read(make(), [OSLO])
    assert isinstance(found, CallPiece)
    assert (found.name, json.loads(found.arguments)) == ("weather", ARGUMENTS)
    assert finish_reason(make, OSLO) == "tool_calls"
    assert finish_reason(make, OSLO, FinishReason.LENGTH) == "length"


def test_several_calls_and_text_around_them_are_told_apart() -> None:
    plain = "<function=plain.thing>\n</function>"
    parts = read(make(), [f"I look.\n<tool_call>\n{plain}\n</tool_call>\n{plain} Done."])
    assert parts == [
        Content("I look.\n"),
        call(0, "plain.thing", "{}"),
        call(1, "plain.thing", "{}"),
        Content(" Done."),
    ]


@pytest.mark.parametrize("end", range(1, len(OSLO)))
def test_a_call_that_is_cut_anywhere_ends_with_length_and_leaks_no_mark_up(end: int) -> None:
    parts = read(make(), [OSLO[:end]], cut=True)
    assert finish_reason(make, OSLO[:end], FinishReason.LENGTH) == "length"
    if len("<tool_call>") <= end:
        assert not any(isinstance(part, Content) for part in parts)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n<function=nosuch>\n</function>",
        "<tool_call> no",
        "<tool_call>\n",
        "<function=",
        "<function=weather",
        "<function=" + "x" * 300 + ">",
        "</tool_call>",
    ],
)
def test_what_only_looks_like_a_call_is_content(text: str) -> None:
    assert read(make(), [text]) == [Content(text)]
    assert finish_reason(make, text) == "stop"


@pytest.mark.parametrize(
    "text",
    [
        "<function=weather>oops</function>",
        "<function=weather><parameter=city>a</parameter><parameter=city>b</parameter></function>",
        "<function=weather><parameter=city>a",
        "<function=weather><parameter=" + "x" * 300 + ">a</parameter></function>",
    ],
)
def test_a_call_that_turns_bad_after_it_began_is_no_reason_to_call_anything(text: str) -> None:
    assert finish_reason(make, text) == "stop"


def test_names_may_be_as_long_as_a_request_s_tools_have_them() -> None:
    longest = "x" * 256
    text = f"<function={longest}><parameter={longest}>a</parameter></function>"
    for pieces in ([text], list(text)):
        parser = Qwen3CoderText({longest: None})
        assert read(parser, pieces) == [call(0, longest, f'{{"{longest}": "a"}}')]


def test_strings_are_told_as_they_come() -> None:
    parser = make()
    parser.feed("<function=weather><parameter=city>\n")
    assert [part.arguments for part in parser.feed("a long\n") if isinstance(part, CallPiece)] == ["a long"]
    assert [part.arguments for part in parser.feed("name") if isinstance(part, CallPiece)] == ["\\nname"]
