"""Calls as a list in Python's syntax."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.python_calls import IncompleteError, python_calls
from app.dialects.pythonic import PythonicText
from app.parts import Content, Part
from tests.app.dialects.reading import NAMES, call, finish_reason, read

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def make() -> PythonicText:
    return PythonicText(NAMES)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('[weather(city="Málaga")]', [call(0, "weather", '{"city": "Málaga"}')]),
        (
            "\n[ weather(city='O\\'Hara', days=-3, at=(1.5, None), of={'a': [True]},), plain.thing() ]\n",
            [
                call(0, "weather", '{"city": "O\'Hara", "days": -3, "at": [1.5, null], "of": {"a": [true]}}'),
                call(1, "plain.thing", "{}"),
            ],
        ),
    ],
)
def test_calls_are_read(text: str, parts: list[Part]) -> None:
    assert read(make(), [text]) == parts
    assert read(make(), list(text)) == parts
    assert finish_reason(make, text) == "tool_calls"


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2]",
        "[nosuch(a=1)]",
        "[weather(1)]",
        "[weather(a=1), nosuch()]",
        "[weather(a=open('x'))]",
        "[weather(a=1)] and so on",
        "[weather(a=" + "[" * 60 + "]" * 60 + ")]",
        "[weather(a=" + "9" * 400 + ")]",
        "[weather(a=1e999)]",
        "[weather(a=1, ",
        "[weather",
        "[]",
        "Hello",
    ],
)
def test_anything_else_is_content(text: str) -> None:
    assert read(make(), [text]) == [Content(text)]
    assert read(make(), list(text)) == [Content(text)]


def test_half_a_list_that_a_limit_cut_is_left_out_but_no_text() -> None:
    assert read(make(), ["[weather(a='x', b="], cut=True) == []
    assert read(make(), ["[weather(a='x"], cut=True) == []
    assert read(make(), ["[weather( is what I think of"], cut=True) == [Content("[weather( is what I think of")]


def test_no_more_is_held_than_a_limit_allows() -> None:
    parser = make()
    told = [part for _ in range(10_000) for part in parser.feed("[weather(")]
    assert sum(len(part.text) for part in told if isinstance(part, Content)) == 90_000


@given(arguments=st.dictionaries(st.sampled_from(["a", "b_c"]), VALUES, max_size=2))
def test_what_python_writes_is_read(arguments: dict[str, Any]) -> None:
    written = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    assert python_calls(f"[f({written})]") == [("f", arguments)]
    with pytest.raises(IncompleteError):
        python_calls(f"[f({written}")
