"""Grammars are built once at the door: what is wrong, deep or huge is refused there and harms nobody."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import trio
from llguidance import LLMatcher, LLTokenizer

from app.grammar import RequestGrammars
from app.limits import Limits
from app.schemas.sampling import SamplingFields
from protocol.errors import BadRequestError
from protocol.sampling import Grammar
from tests.helpers.app_under_test import make_tokenizer
from tests.helpers.fake_engine import FakeEngine

BYTES = LLTokenizer("byte")
LIMITS = Limits()


async def compiled(**fields: Any) -> Grammar | None:
    return await RequestGrammars(FakeEngine(make_tokenizer()), LIMITS).grammar_of(
        msgspec.convert(fields, SamplingFields)
    )


def accepts(grammar: Grammar | None, text: str) -> bool:
    assert grammar is not None
    matcher = LLMatcher(BYTES, grammar.text)
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


def closed(properties: dict[str, Any]) -> dict[str, Any]:
    required = list(properties)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def schema_format(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}


async def test_text_and_nothing_need_no_grammar() -> None:
    assert await compiled() is None
    assert await compiled(response_format={"type": "text"}) is None
    assert await compiled(response_format=None, structured_outputs=None) is None


async def test_a_schema_is_obeyed_with_at_most_one_blank_between() -> None:
    grammar = await compiled(**schema_format(closed({"a": {"type": "boolean"}, "b": {"type": "integer"}})))
    assert accepts(grammar, '{"a":true,"b":1}')
    assert accepts(grammar, '{"a": true, "b": 1}')
    assert not accepts(grammar, '{"a":  true,"b":1}')
    assert not accepts(grammar, '{"a":\ntrue,"b":1}')
    assert not accepts(grammar, '{"a":1,"b":1}')


async def test_json_object_is_any_object() -> None:
    grammar = await compiled(response_format={"type": "json_object"})
    assert accepts(grammar, '{"x": [1, {"y": null}]}')
    assert not accepts(grammar, "[1]")
    assert not accepts(grammar, '{"x":   1}')


@pytest.mark.parametrize("schema", [{"type": "integer"}, '{"type": "integer"}'])
async def test_structured_json_takes_a_schema_or_its_text(schema: Any) -> None:
    grammar = await compiled(structured_outputs={"json": schema})
    assert accepts(grammar, "12")
    assert not accepts(grammar, "x")


async def test_regex_choice_and_lark() -> None:
    assert accepts(await compiled(structured_outputs={"regex": r"\d{3}/[a-z]+"}), "123/abc")
    choice = await compiled(structured_outputs={"choice": ["purple cat", 'a "quoted" dog', "船\n"]})
    for text in ("purple cat", 'a "quoted" dog', "船\n"):
        assert accepts(choice, text)
    assert not accepts(choice, "purple")
    assert accepts(await compiled(structured_outputs={"grammar": 'start: "a" | "b"'}), "b")
    assert accepts(await compiled(structured_outputs={"json_object": True}), "{}")


DEEP: dict[str, Any] = {"type": "boolean"}
for _ in range(60):
    DEEP = {"type": "array", "items": DEEP}

REFUSED = {
    "unknown type": schema_format(closed({"a": {"type": "str"}})),
    "bad pattern": schema_format(closed({"a": {"type": "string", "pattern": "["}})),
    "deep pattern": schema_format(closed({"a": {"type": "string", "pattern": "(" * 5000}})),
    "deep closed pattern": schema_format({"type": "string", "pattern": "(" * 100 + "a" + ")" * 100}),
    "deep pattern property": schema_format({"patternProperties": {"(" * 100 + ")" * 100: {}}}),
    "long pattern": schema_format({"type": "string", "pattern": "a" * 10_000}),
    "empty enum": schema_format(closed({"a": {"enum": []}})),
    "contradiction": schema_format(closed({"a": {"type": "integer", "minimum": 5, "maximum": 1}})),
    "schema is false": schema_format(False),
    "schema is a list": {"structured_outputs": {"json": "[1]"}},
    "schema is no JSON": {"structured_outputs": {"json": "{"}},
    "deep text": {"structured_outputs": {"json": "[" * 5000}},
    "huge": schema_format({"enum": ["x" * 300_000]}),
    "endless reference": schema_format({"$ref": "#"}),
    "no text matches": {"structured_outputs": {"regex": r"[^\s\S]"}},
    "endless lark": {"structured_outputs": {"grammar": 'start: a\na: a "x"'}},
    "too much fuel": schema_format({"type": "integer", "multipleOf": 982451653, "maximum": 10**40}),
    "unknown reference": schema_format({"$ref": "#/$defs/none"}),
    "foreign reference": schema_format({"$ref": "http://localhost/schema"}),
    "bad regex": {"structured_outputs": {"regex": "("}},
    "deep regex": {"structured_outputs": {"regex": "(" * 5000 + ")" * 5000}},
    "bad lark": {"structured_outputs": {"grammar": "start: ("}},
    "deep lark": {"structured_outputs": {"grammar": "start: " + "(" * 5000 + '"a"' + ")" * 5000}},
    "no choices": {"structured_outputs": {"choice": []}},
    "empty choice": {"structured_outputs": {"choice": ["a", ""]}},
    "two at once": {"structured_outputs": {"regex": "a", "choice": ["a"]}},
    "none": {"structured_outputs": {}},
    "both ways": {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
    "other format": {"response_format": {"type": "yaml"}},
    "no schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
}


@pytest.mark.parametrize("fields", REFUSED.values(), ids=REFUSED.keys())
async def test_what_cannot_be_a_grammar_is_refused_each_time_in_a_few_words(fields: dict[str, Any]) -> None:
    for _ in range(2):
        with pytest.raises(BadRequestError) as caught:
            await compiled(**fields)
        assert len(caught.value.message) < 500
        assert caught.value.param in ("response_format", "structured_outputs")


async def refusal(**structured_outputs: Any) -> str:
    with pytest.raises(BadRequestError) as caught:
        await compiled(structured_outputs=structured_outputs)
    return caught.value.message


async def test_who_writes_only_keys_that_are_unknown_or_several_is_told_so() -> None:
    assert "got none of them (any other key is unknown here" in await refusal(foo="a")
    assert (await refusal(regex="a", choice=["a"])).endswith("got regex, choice")


async def test_who_writes_gbnf_is_told_which_dialect_is_wanted() -> None:
    for gbnf in ('root ::= "a" | "b"', 'ws::= [ ]*\n  root-1 ::= ws "a"'):
        assert "looks like GBNF" in await refusal(grammar=gbnf)
    for lark in ('start: "::="x', "start: ("):
        assert "GBNF" not in await refusal(grammar=lark)
    assert "GBNF" not in await refusal(regex="(?<=a) ::= (")


async def test_a_long_complaint_is_cut() -> None:
    for lark in ("start: " + '"x" ' * 500 + "(", 'start: "' + "é" * 400):
        assert len(await refusal(grammar=lark)) < 230


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "maxLength": 1_000_000},
        {"type": "integer", "maximum": 10**30},
        DEEP,
        {"$defs": {"n": closed({"kids": {"type": "array", "items": {"$ref": "#/$defs/n"}}})}, "$ref": "#/$defs/n"},
        closed({f"k{i}": {"type": "string", "maxLength": 100} for i in range(500)}),
    ],
    ids=lambda schema: json.dumps(schema)[:30],
)
async def test_costly_schemas_are_served_or_refused_in_no_time(schema: Any) -> None:
    with trio.fail_after(5):
        try:
            assert await compiled(**schema_format(schema)) is not None
        except BadRequestError:
            pass


async def test_a_schema_cannot_loosen_the_whitespace() -> None:
    schema = {**closed({"a": {"type": "boolean"}}), "x-guidance": {"whitespace_flexible": True}}
    assert not accepts(await compiled(**schema_format(schema)), '{"a":   true}')
