"""Thoughts before the answer, with the prompt saying whether they have begun."""

from __future__ import annotations

import pytest

from app.dialects.hermes import HermesText
from app.dialects.plain import PlainText
from app.dialects.thinking import Thinking, ThinkText, thinking_after, thinking_in
from app.parts import Content, Part, Reasoning
from tests.app.dialects.reading import NAMES, call, read


@pytest.mark.parametrize(
    ("where", "text", "parts"),
    [
        (Thinking.UNSAID, "<think>\nHm.\n</think>\n\nHi", [Reasoning("\nHm.\n"), Content("\n\nHi")]),
        (Thinking.UNSAID, "\n<think>Hm.", [Reasoning("Hm.")]),
        (Thinking.UNSAID, "Hi </think> there", [Content("Hi </think> there")]),
        (Thinking.UNSAID, " <thi", [Content(" <thi")]),
        (Thinking.OPEN, "Hm.</think>Hi", [Reasoning("Hm."), Content("Hi")]),
        (Thinking.OPEN, "<think>Hm.</think>Hi<think>", [Reasoning("Hm."), Content("Hi<think>")]),
        (Thinking.OPEN, "Hm. </thi", [Reasoning("Hm. </thi")]),
        (Thinking.OPEN, "Hm.</think>", [Reasoning("Hm.")]),
        (Thinking.OPEN, "\n\n</think>Hi", [Content("Hi")]),
        (Thinking.CLOSED, "<think>Hi</think>", [Content("<think>Hi</think>")]),
    ],
)
def test_thoughts_end_at_their_mark(where: Thinking, text: str, parts: list[Part]) -> None:
    assert read(ThinkText(where, PlainText()), [text]) == parts
    assert read(ThinkText(where, PlainText()), list(text)) == parts


def test_calls_in_thoughts_are_thoughts() -> None:
    text = '<tool_call>{"name": "weather"}</tool_call>'
    parser = ThinkText(Thinking.OPEN, HermesText(NAMES))
    assert read(parser, [f"{text}</think>\n\n{text}"]) == [Reasoning(text), call(0, "weather", "{}")]


@pytest.mark.parametrize(
    ("prompt", "where"),
    [
        ("<|im_start|>assistant\n<think>\n", Thinking.OPEN),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", Thinking.CLOSED),
        ("<think>old</think>Hi<|im_end|>\n<|im_start|>assistant\n", Thinking.UNSAID),
    ],
)
def test_the_prompts_end_says_whether_the_model_thinks(prompt: str, where: Thinking) -> None:
    assert thinking_after(prompt) is where


def test_a_continued_answer_thinks_on_unless_it_has_stopped() -> None:
    assert thinking_in("<think>Hm, ") is Thinking.OPEN
    assert thinking_in("<think>Hm</think>Hi") is Thinking.CLOSED
    assert thinking_in("The sky") is Thinking.CLOSED
    assert thinking_in("") is Thinking.UNSAID
