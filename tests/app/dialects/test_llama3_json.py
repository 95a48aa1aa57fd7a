"""Calls as Llama 3.1 and later write them."""

from __future__ import annotations

import pytest

from app.dialects.llama3_json import LlamaText
from app.parts import Content, Part
from tests.app.dialects.reading import NAMES, call, finish_reason, read


def make() -> LlamaText:
    return LlamaText(NAMES, {"<|python_tag|>"})


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('{"name": "weather", "parameters": {"city": "Oslo"}}', [call(0, "weather", '{"city": "Oslo"}')]),
        ('<|python_tag|>{"name": "weather", "arguments": {}}', [call(0, "weather", "{}")]),
        (
            '<|python_tag|>{"type": "function", "name": "weather", "parameters": {"a": ";"}}; {"name": "plain.thing"}',
            [call(0, "weather", '{"a": ";"}'), call(1, "plain.thing", "{}")],
        ),
        (
            '\n{"name": "weather", "parameters": {}}\n;\n{"name": "weather", "parameters": {"b": {}}}',
            [call(0, "weather", "{}"), call(1, "weather", '{"b": {}}')],
        ),
    ],
)
def test_calls_are_read(text: str, parts: list[Part]) -> None:
    assert read(make(), [text]) == parts
    assert finish_reason(make, text) == "tool_calls"


@pytest.mark.parametrize(
    "text",
    [
        '{"city": "Oslo"}',
        '{"name": "Oslo", "parameters": {}}',
        'See {"name": "weather", "parameters": {}}',
        "; {",
        '[{"name": "weather"}]',
    ],
)
def test_other_json_is_content(text: str) -> None:
    assert read(make(), [text]) == [Content(text)]


def test_the_models_own_python_is_content_without_its_tag() -> None:
    assert read(make(), ["<|python_tag|>print(1)"]) == [Content("print(1)")]
