"""Messages on channels, as gpt-oss writes them."""

from __future__ import annotations

import pytest

from app.dialects.harmony import HarmonyText
from app.parts import Content, Part, Reasoning
from protocol.messages import FinishReason
from tests.app.dialects.reading import NAMES, call, finish_reason, read

THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"


def make() -> HarmonyText:
    return HarmonyText(NAMES, "assistant")


@pytest.mark.parametrize(
    ("text", "parts", "reason"),
    [
        (THOUGHT + "<|channel|>final<|message|>Hi!", [Reasoning("Hm."), Content("Hi!")], "stop"),
        (
            THOUGHT + "<|channel|>final <|constrain|>json<|message|>{}<|return|>",
            [Reasoning("Hm."), Content("{}")],
            "stop",
        ),
        (
            THOUGHT + '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>',
            [Reasoning("Hm."), call(0, "weather", '{"city": "Oslo"}')],
            "tool_calls",
        ),
        (" to=functions.weather<|channel|>commentary json<|message|>{}", [call(0, "weather", "{}")], "tool_calls"),
        (
            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary "
            "to=functions.plain.thing<|message|><|call|><|start|>assistant to=functions.weather<|channel|>analysis"
            '<|message|>{"a": "<"}',
            [Content("I look."), call(0, "plain.thing", "{}"), call(1, "weather", '{"a": "<"}')],
            "tool_calls",
        ),
        ("<|channel|>commentary to=functions.nosuch<|message|>{}<|call|>", [Content("{}")], "stop"),
        ("<|channel|>commentary to=functions.weather<|message|>Oslo<|call|>", [Content("Oslo")], "stop"),
        ("<|channel|>commentary to=functions.weather<|message|>{Oslo}<|call|>", [call(0, "weather", "{Oslo}")], "stop"),
        ("Hello, no header", [Content("Hello, no header")], "stop"),
        ("{}", [Content("{}")], "stop"),
        ("a", [Content("a")], "stop"),
        ("<|channel|>final<|message|>", [], "stop"),
        ("", [], "stop"),
    ],
)
def test_channels_are_told_apart(text: str, parts: list[Part], reason: str) -> None:
    assert read(make(), [text]) == parts
    assert read(make(), list(text)) == parts
    assert finish_reason(make, text) == reason
    assert finish_reason(make, text, FinishReason.LENGTH) == "length"


def test_an_answer_goes_on_where_the_prompt_left_it() -> None:
    assert read(HarmonyText(NAMES, "assistant<|channel|>final<|message|>The sky"), [" is"]) == [Content(" is")]
    assert read(HarmonyText(NAMES, "assistant<|channel|>analysis"), ["<|message|>Hm."]) == [Reasoning("Hm.")]
