"""Calls as Mistral's models write them, the older and the newer ones."""

from __future__ import annotations

import re

import pytest

from app.dialects.mistral import MistralText
from app.parts import CallPiece, Content, Part
from tests.app.dialects.reading import NAMES, call, finish_reason, read


def make() -> MistralText:
    return MistralText(NAMES)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo"}}]', [call(0, "weather", '{"city": "Oslo"}')]),
        (
            '[TOOL_CALLS] [{"name": "weather", "arguments": {"a": "]"}}, {"arguments": {}, "name": "plain.thing"}]\n',
            [call(0, "weather", '{"a": "]"}'), call(1, "plain.thing", "{}")],
        ),
        ('[TOOL_CALLS]weather{"city": "Oslo"}', [call(0, "weather", '{"city": "Oslo"}')]),
        (
            'I look.[TOOL_CALLS]weather[ARGS]{"a": 1}[TOOL_CALLS]plain.thing[CALL_ID]abc123XYZ[ARGS]{}',
            [Content("I look."), call(0, "weather", '{"a": 1}'), call(1, "plain.thing", "{}")],
        ),
        ('[TOOL_CALLS]{"name": "weather", "arguments": {}}', [call(0, "weather", "{}")]),
    ],
)
def test_calls_are_read(text: str, parts: list[Part]) -> None:
    assert read(make(), [text]) == parts
    assert finish_reason(make, text) == "tool_calls"


@pytest.mark.parametrize(
    "text",
    [
        "[TOOL_CALLS]",
        "[TOOL_CALLS][]",
        '[TOOL_CALLS]nosuch{"a": 1}',
        "[TOOL_CALLS]weather",
        "[TOOL_CALLS][1, 2]",
        "[1]",
    ],
)
def test_what_only_looks_like_a_call_is_content(text: str) -> None:
    assert read(make(), [text]) == [Content(text)]


@pytest.mark.parametrize("text", ["[TOOL_CALLS]", "[TOOL_CALLS]weath", '[TOOL_CALLS][{"name": "wea'])
def test_half_a_mark_up_that_a_limit_cut_is_left_out(text: str) -> None:
    assert read(make(), [text], cut=True) == []


def test_ids_are_what_its_templates_take() -> None:
    piece = next(part for part in make().feed("[TOOL_CALLS]weather{") if isinstance(part, CallPiece))
    assert re.fullmatch("[A-Za-z0-9]{9}", piece.id or "")
