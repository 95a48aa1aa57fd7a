"""Whatever a model writes: the same parts however the text is cut, nothing lost, and work as long as the text."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.choice_reader import TextParser
from app.dialects.harmony import MARKS, HarmonyText
from app.dialects.hermes import HermesText
from app.dialects.llama3_json import LlamaText
from app.dialects.markers import Markers
from app.dialects.mistral import MistralText
from app.dialects.plain import PlainText, WithoutControlTokens
from app.dialects.pythonic import PythonicText
from app.dialects.qwen3_coder import Qwen3CoderText
from app.dialects.thinking import Thinking, ThinkText
from app.parts import CallPiece, Content, Reasoning
from tests.app.dialects.reading import NAMES, in_pieces, read

MAKERS: dict[str, Callable[[], TextParser]] = {
    "hermes": lambda: HermesText(NAMES),
    "llama3_json": lambda: LlamaText(NAMES),
    "mistral": lambda: MistralText(NAMES),
    "qwen3_coder": lambda: Qwen3CoderText({"weather": {"properties": {"n": {"type": "integer"}}}, "plain.thing": None}),
    "pythonic": lambda: PythonicText(NAMES),
    "harmony": lambda: HarmonyText(NAMES, "assistant"),
    "thinking": lambda: ThinkText(Thinking.UNSAID, HermesText(NAMES)),
    "always thinking": lambda: ThinkText(Thinking.OPEN, MistralText(NAMES)),
    "plain": PlainText,
    "hidden": lambda: WithoutControlTokens(Markers(("<|x|>", "<|x|>y", "<eos>")), HermesText(NAMES)),
}

SCRAPS = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[", "]", ",",
        ";", "{", "}", " ", "\n", "<", "<tool", "weather", '{"name": "weather", "arguments": ', '"', "\\", "é😀",
        '{"city": "Oslo"}', '{"name": "weather", "parameters": {"a": "</tool_call>"}}', "assistant",
        " to=functions.weather", "commentary", "[weather(", "a=1", ")]", "analysis",
        "final",
        "<function=", "<function=weather>", "<parameter=", "<parameter=n>", ">", "</parameter>", "</function>",
        "<|x|>", "<eos>", "text", "null", *MARKS,
    ]
)  # fmt: skip
TEXTS = st.lists(SCRAPS, max_size=12).map("".join)


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=60)
@given(text=TEXTS, cut=st.booleans(), data=st.data())
def test_parts_do_not_depend_on_where_the_text_is_cut(name: str, text: str, cut: bool, data: st.DataObject) -> None:
    whole, pieces = MAKERS[name](), MAKERS[name]()
    expected = read(whole, [text], cut=cut)
    assert read(pieces, data.draw(in_pieces(text)), cut=cut) == expected
    assert list(pieces.whole_calls) == list(whole.whole_calls)
    one_by_one = MAKERS[name]()
    assert read(one_by_one, list(text), cut=cut) == expected


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "mistral", "pythonic", "qwen3_coder"])
@settings(max_examples=60)
@given(text=TEXTS)
def test_text_without_calls_comes_out_as_it_was_written(name: str, text: str) -> None:
    parts = read(MAKERS[name](), [text])
    if not any(isinstance(part, CallPiece) for part in parts):
        assert "".join(part.text for part in parts if isinstance(part, Content)) == text


@settings(max_examples=50)
@given(text=TEXTS)
def test_a_call_that_is_called_whole_has_arguments_that_are_an_object(text: str) -> None:
    for make in MAKERS.values():
        parser = make()
        calls = [part for part in read(parser, [text]) if isinstance(part, CallPiece)]
        assert [part.index for part in calls] == list(range(len(parser.whole_calls)))
        for part, is_whole in zip(calls, parser.whole_calls, strict=True):
            assert part.name in NAMES
            if is_whole:
                assert isinstance(json.loads(part.arguments), dict)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(("num_feeds", "at_once"), [(10_000, 1), (1, 30_000)])
@pytest.mark.parametrize("marker", ["<tool_call>", "[TOOL_CALLS]", "<think>", "<|channel|>", '<tool_call>{"name": "'])
def test_many_opening_marks_are_read_in_no_time(name: str, marker: str, num_feeds: int, at_once: int) -> None:
    """Quadratic work would take minutes."""
    parser = MAKERS[name]()
    told = [part for _ in range(num_feeds) for part in parser.feed(marker * at_once)]
    told += parser.end(cut=False)
    told_characters = sum(len(part.text) for part in told if isinstance(part, Content | Reasoning))
    assert told_characters <= num_feeds * at_once * len(marker)


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "mistral"])
def test_what_never_becomes_a_call_is_not_held_back_for_ever(name: str) -> None:
    begun = {"hermes": "<tool_call>", "llama3_json": "", "mistral": "[TOOL_CALLS]["}[name]
    parser = MAKERS[name]()
    parser.feed(begun + '{"type": "')
    told = [part for _ in range(20_000) for part in parser.feed("abcdefgh")]
    assert sum(len(part.text) for part in told if isinstance(part, Content)) > 90_000
