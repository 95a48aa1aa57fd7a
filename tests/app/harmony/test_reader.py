"""Answers of gpt-oss by their tokens: what the client is told of them, however they come and wherever they end."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.call_reader import CallReader
from app.calls import Calls
from app.choice_reader import Wanted
from app.dialects.harmony import MARKS
from app.parts import CallPiece, Content, Part, Reasoning
from protocol.messages import FinishReason
from tests.app.dialects.reading import call
from tests.app.harmony.reading import PROMPT, ids, in_pieces, make_reader, outputs, read
from tests.helpers.harmony_vocabulary import gpt_oss_tokenizer

THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
HM = Reasoning("Hm.")


@pytest.mark.parametrize("one_by_one", [True, False])
@pytest.mark.parametrize(
    ("text", "parts", "reason"),
    [
        (THOUGHT + "<|channel|>final<|message|>Hi!<|return|>", [HM, Content("Hi!")], "stop"),
        (THOUGHT + "<|channel|>final <|constrain|>json<|message|>{}<|return|>", [HM, Content("{}")], "stop"),
        (
            THOUGHT + '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>',
            [HM, call(0, "weather", '{"city": "Oslo"}')],
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
        (
            '<|channel|>commentary to=one.add<|message|>{"a": 1}<|call|>',
            [call(0, "one__add", '{"a": 1}')],
            "tool_calls",
        ),
        (
            '<|channel|>analysis to=python code<|message|>print("é\\n")\n<|call|>',
            [call(0, "python__run", '{"code": "print(\\"é\\\\n\\")\\n"}')],
            "tool_calls",
        ),
        (
            '<|channel|>commentary to=python.run<|message|>{"code": "1"}<|call|>',
            [call(0, "python__run", '{"code": "1"}')],
            "tool_calls",
        ),
        ("<|channel|>commentary to=functions.one.add<|message|>{}<|call|>", [call(0, "one__add", "{}")], "tool_calls"),
        ("<|channel|>commentary to=one<|message|>{}<|call|>", [Content("{}")], "stop"),
        ("<|channel|>commentary to=functions.nosuch<|message|>{}<|call|>", [Content("{}")], "stop"),
        ("<|channel|>commentary to=functions.weather<|message|>Oslo<|call|>", [Content("Oslo")], "stop"),
        ("<|channel|>commentary to=functions.weather<|message|>{Oslo}<|call|>", [call(0, "weather", "{Oslo}")], "stop"),
        ("<|channel|>commentary odd words to=functions.weather<|message|>{}", [call(0, "weather", "{}")], "tool_calls"),
        ("<|channel|><|message|>Hi", [Content("Hi")], "stop"),
        ("<|message|>Hi", [Content("Hi")], "stop"),
        ("<|channel|>final<|message|>a<|channel|>final<|message|>b", [Content("ab")], "stop"),
        ("<|channel|>analysis<|message|>Hm.<|start|>assistant<|channel|>final<|message|>b", [HM, Content("b")], "stop"),
        ("<|channel|>final<|message|>a<|message|>b<|constrain|>c<|reserved_200010|>d", [Content("abcd")], "stop"),
        ("<|channel|>final<|message|>a<|end|>b<|start|>who<|channel|>final<|message|>c", [Content("abwhoc")], "stop"),
        ("<|start|>assistant<|channel|>final<|message|>a", [Content("a")], "stop"),
        ("Hello, no header", [Content("Hello, no header")], "stop"),
        ("{}", [Content("{}")], "stop"),
        ("a", [Content("a")], "stop"),
        ("<|channel|>" + "final " * 200 + "<|message|>x", [Content("final " * 200 + "x")], "stop"),
        ("<|channel|>final<|message|>", [], "stop"),
        ("<|channel|>final", [], "stop"),
        ("", [], "stop"),
    ],
)  # fmt: skip
def test_channels_are_told_apart(text: str, parts: list[Part], reason: str, one_by_one: bool) -> None:
    token_ids = ids(text)
    pieces = [[token_id] for token_id in token_ids] if one_by_one and token_ids else [token_ids]
    for end in (FinishReason.STOP, FinishReason.LENGTH):
        reader = make_reader()
        told = read(reader, outputs(pieces, end))
        if end is FinishReason.STOP:
            assert told == parts
        assert reader.finish_reason(end) == (reason if end is FinishReason.STOP else "length")


def test_control_tokens_that_are_only_spelled_are_text() -> None:
    spelled = "a<|end|><|start|>assistant<|channel|>final<|message|>b"
    literal = gpt_oss_tokenizer().encode(spelled, literal=True)
    assert max(literal) < 199_998
    told = outputs([ids("<|channel|>analysis<|message|>") + literal + ids("<|end|>")])
    assert read(make_reader(), told) == [Reasoning(spelled)]


def test_control_tokens_that_mean_nothing_are_told_to_who_wants_to_see_them() -> None:
    token_ids = ids("<|channel|>final<|message|>a<|endoftext|>b<|end|><|start|>assistant<|channel|>final<|message|>c")
    shown = outputs([[token_id] for token_id in token_ids], skip_special_tokens=False)
    assert read(make_reader(spells_control_tokens=True), shown) == [Content("a<|endoftext|>bc")]
    assert read(make_reader(), outputs([token_ids])) == [Content("abc")]


@pytest.mark.parametrize(
    ("prompt", "text", "parts"),
    [
        ("<|start|>assistant<|channel|>final<|message|>The sky", " is", [Content(" is")]),
        ("<|start|>assistant<|channel|>analysis", "<|message|>Hm.", [HM]),
        ("<|start|>user<|message|>Hi<|end|>", "<|start|>assistant<|channel|>final<|message|>Hi", [Content("Hi")]),
        ("no mark at all", "<|channel|>analysis<|message|>Hm.", [HM]),
    ],
)
def test_an_answer_goes_on_where_the_prompt_left_it(prompt: str, text: str, parts: list[Part]) -> None:
    assert read(make_reader(prompt), outputs([ids(text)], prompt=prompt)) == parts


@pytest.mark.parametrize(
    ("stop", "parts", "reason"),
    [
        ("ear", [Reasoning("Rain, I f")], "stop"),
        ("It r", [Reasoning("Rain, I fear."), call(0, "weather", '{"city": "Oslo"}')], "tool_calls"),
        ("Oslo", [Reasoning("Rain, I fear."), call(0, "weather", '{"city": "')], "stop"),
        ("😀", [Reasoning("Rain, I fear."), call(0, "weather", '{"city": "Oslo"}'), Content("It rains. ")], "stop"),
        (
            "never",
            [Reasoning("Rain, I fear."), call(0, "weather", '{"city": "Oslo"}'), Content("It rains. 😀")],
            "stop",
        ),
    ],
)
def test_nothing_is_told_of_what_a_stop_string_cuts_off(stop: str, parts: list[Part], reason: str) -> None:
    text = (
        "<|channel|>analysis<|message|>Rain, I fear.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.weather json<|message|>{"city": "Oslo"}<|call|><|start|>assistant<|channel|>final<|message|>'
        "It rains. 😀<|return|>"
    )
    for pieces in ([ids(text)], [[token_id] for token_id in ids(text)]):
        reader = make_reader()
        assert read(reader, outputs(pieces, stop=[stop])) == parts
        if len(parts) < 3:  # what follows the call is an answer of a model that goes on by itself
            assert reader.finish_reason("stop") == reason


def test_the_tokens_of_thoughts_are_counted_exactly() -> None:
    thoughts, more = "Rain, I fear. 😀 Or not?", " Snow."
    text = (
        f"<|channel|>analysis<|message|>{thoughts}<|end|><|start|>assistant<|channel|>analysis<|message|>{more}<|end|>"
        "<|start|>assistant<|channel|>final<|message|>It rains.<|return|>"
    )
    reader = make_reader(wanted=Wanted(include_reasoning=False))
    assert read(reader, outputs([ids(text)])) == [Content("It rains.")]
    assert reader.num_reasoning_tokens == len(ids(thoughts)) + len(ids(more))


def test_one_call_at_most_is_told_if_they_may_not_be_parallel() -> None:
    text = "<|channel|>commentary to=functions.weather<|message|>{}<|call|><|start|>assistant" * 2
    reader = make_reader(wanted=Wanted(max_calls=1))
    assert read(reader, outputs([ids(text)])) == [call(0, "weather", "{}")]
    assert reader.finish_reason("stop") == "tool_calls"


def test_a_forced_call_is_read_on_the_final_channel() -> None:
    forced = f'{THOUGHT}<|channel|>final<|message|>[{{"name": "weather", "parameters": {{"city": "Oslo"}}}}]<|return|>'
    reader = make_reader(answer=CallReader(Calls({}, None)))
    assert read(reader, outputs([ids(forced)])) == [HM, call(0, "weather", '{"city": "Oslo"}')]
    assert reader.finish_reason("stop") == "tool_calls"


SCRAPS = st.sampled_from(
    [
        *("assistant", " to=functions.weather", " to=one.add", " to=python", "commentary", "analysis", "final", "json"),
        *("{", "}", " ", "\n", "<", "<|", "|>", "é😀", "漢字", '"', "\\", '{"a": 1}', "user", "word", "<|endoftext|>"),
        *MARKS,
        *MARKS,
    ]
)
TEXTS = st.lists(SCRAPS, max_size=16).map("".join)


@settings(max_examples=150)
@given(
    text=TEXTS,
    cuts=st.lists(st.integers(0, 40), max_size=6),
    end=st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
    stop=st.sampled_from([[], ["a", "é"], ["}"], ["al"]]),
    spells=st.booleans(),
)
def test_parts_do_not_depend_on_how_the_tokens_come(
    text: str, cuts: list[int], end: FinishReason, stop: list[str], spells: bool
) -> None:
    token_ids = ids(text)
    found = []
    for pieces in ([token_ids], in_pieces(token_ids, cuts), [*([each] for each in token_ids), []]):
        reader = make_reader(spells_control_tokens=spells)
        parts = read(reader, outputs(pieces, end, stop=stop, skip_special_tokens=not spells))
        found.append((parts, reader.finish_reason(end), reader.num_reasoning_tokens))
    assert found[0] == found[1] == found[2]


@settings(max_examples=100)
@given(text=TEXTS)
def test_what_is_told_is_in_the_text_in_its_order(text: str) -> None:
    told = outputs([ids(text)], FinishReason.LENGTH)
    whole = "".join(output.text for output in told)
    at = 0
    for part in read(make_reader(), told):
        if isinstance(part, CallPiece):
            continue  # a call's arguments may be escaped
        for word in part.text:
            at = whole.index(word, at) + 1


def test_many_marks_are_read_in_no_time() -> None:
    for mark in (*MARKS, "<|channel|>final", "assistant"):
        reader = make_reader()
        for output in outputs([ids(mark) * 50 for _ in range(10)], FinishReason.LENGTH):
            reader.feed(output)


def test_the_prompt_of_these_tests_ends_in_a_header() -> None:
    assert PROMPT.endswith("assistant")
