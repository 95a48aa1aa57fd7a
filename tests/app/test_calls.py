"""Forced tool calls: what is asked of the model, and what is read out of its text, however it is cut."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from app.call_reader import CallReader
from app.calls import Calls, forced_calls
from app.choice_reader import TextReader
from app.limits import Limits
from app.parts import CallPiece
from app.schemas.chat import NamedFunction, NamedToolChoice, Tool
from protocol.errors import BadRequestError
from tests.helpers.app_under_test import make_app

BYTES = LLTokenizer("byte")


def tool(name: str, parameters: Any = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


WEATHER = tool("weather", {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]})
TREE = tool(
    "tree", {"$defs": {"t": {"type": "object", "properties": {"kid": {"$ref": "#/$defs/t"}}}}, "$ref": "#/$defs/t"}
)
PLAIN = tool("plain")
HISTORY = [{"role": "user", "content": "Weather?"}]


def forced(tools: list[dict[str, Any]] | None, choice: Any, parallel: bool = True) -> Calls | None:
    decoded = None if tools is None else msgspec.convert(tools, list[Tool])
    return forced_calls(decoded, choice, parallel, Limits(max_tools=16))


def named(name: str) -> NamedToolChoice:
    return NamedToolChoice("function", NamedFunction(name))


def accepts(calls: Calls | None, text: str) -> bool:
    assert calls is not None
    options = {"whitespace_flexible": False}
    matcher = LLMatcher(BYTES, LLMatcher.grammar_from_json_schema(json.dumps(calls.schema), overrides=options))
    assert not matcher.get_error()
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


@pytest.mark.parametrize("choice", [None, "none", "auto"])
def test_none_and_auto_force_nothing(choice: str | None) -> None:
    assert forced([WEATHER], choice) is None


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        (None, "required"),
        ([], "required"),
        (None, named("weather")),
        ([WEATHER], named("nosuch")),
        ([WEATHER], NamedToolChoice("custom", NamedFunction("weather"))),
        ([WEATHER], "always"),
        ([WEATHER, WEATHER], "auto"),
        ([tool("")], "auto"),
        ([tool("x" * 257)], "auto"),
        ([{**WEATHER, "type": "browser"}], "auto"),
        ([tool(f"t{i}") for i in range(17)], "auto"),
    ],
)
def test_a_choice_that_cannot_be_met_is_refused(tools: Any, choice: Any) -> None:
    with pytest.raises(BadRequestError):
        forced(tools, choice)


def test_the_schema_allows_calls_of_the_tools_and_nothing_else() -> None:
    calls = forced([WEATHER, TREE, PLAIN], "required")
    assert accepts(calls, '[{"name":"weather","parameters":{"city":"Rome"}},{"name":"plain","parameters":{}}]')
    assert accepts(calls, '[{"name":"tree","parameters":{"kid":{"kid":{}}}}]')
    assert not accepts(calls, "[]")
    assert not accepts(calls, '[{"name":"weather","parameters":{"city":"Bonn"}}]')
    one = forced([TREE], "required", parallel=False)
    assert accepts(one, '{"name":"tree","parameters":{"kid":{}}}')
    assert accepts(forced([WEATHER, TREE], named("tree")), '{"kid":{}}')


ARGUMENTS = st.dictionaries(
    st.text(max_size=4),
    st.one_of(
        st.text(max_size=6), st.integers(), st.lists(st.text(max_size=3), max_size=2), st.just({"{": ["}", '"']})
    ),
    max_size=3,
)
NAMES = st.sampled_from(["weather", "plain", 'odd "name" \\ {'])


@given(st.lists(st.tuples(NAMES, ARGUMENTS), min_size=1, max_size=3), st.booleans(), st.data())
def test_calls_come_out_whole_however_the_text_is_cut(wanted: Any, compact: bool, data: st.DataObject) -> None:
    separators = (",", ":") if compact else (", ", ": ")
    text = json.dumps([{"name": n, "parameters": a} for n, a in wanted], separators=separators)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    reader = CallReader(Calls({}, None))
    pieces = [piece for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True) for piece in reader.feed(text[a:b])]
    pieces = [piece for piece in pieces if isinstance(piece, CallPiece)]

    assert [(call.name, json.loads(call.arguments)) for call in reader.calls] == wanted
    assert TextReader(reader).finish_reason("stop") == "tool_calls"
    for index, call in enumerate(reader.calls):
        own = [piece for piece in pieces if piece.index == index]
        assert (own[0].id, own[0].name) == (call.id, call.name)
        assert not any(piece.id or piece.name for piece in own[1:])
        assert "".join(piece.arguments for piece in own) == call.arguments


@given(ARGUMENTS, st.integers(1, 20))
def test_a_named_tools_arguments_are_the_text_itself(arguments: Any, step: int) -> None:
    text = json.dumps(arguments)
    reader = CallReader(Calls({}, "weather"))
    for at in range(0, len(text), step):
        assert TextReader(reader).finish_reason("length") == "length"
        reader.feed(text[at : at + step])
    reader.feed("")
    assert [(call.name, call.arguments) for call in reader.calls] == [("weather", text)]
    assert TextReader(reader).finish_reason("stop") == "tool_calls"
    assert TextReader(reader).finish_reason("length") == "length"


CALL = '[{"name": "weather", "parameters": {"city": "Oslo"}}]'


async def test_a_required_call_is_answered_as_a_call() -> None:
    under_test = make_app(reply=lambda prompt, index: CALL)
    choice = (await under_test.chat(tools=[WEATHER], tool_choice="required")).json["choices"][0]
    assert choice["message"]["content"] is None
    call = choice["message"]["tool_calls"][0]
    assert call["type"] == "function"
    assert call["id"].startswith("call_")
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
    assert choice["finish_reason"] == "tool_calls"
    assert under_test.engine.prompts[0].sampling_params.grammar is not None


@pytest.mark.parametrize("tokens_per_delta", [1, 4, 100])
async def test_a_streamed_call_has_its_name_first_then_its_arguments(tokens_per_delta: int) -> None:
    under_test = make_app(reply=lambda prompt, index: CALL, tokens_per_delta=tokens_per_delta)
    reply = await under_test.chat(tools=[WEATHER], tool_choice="required", stream=True)
    choices = [json.loads(line[6:])["choices"][0] for line in reply.text.split("\n\n")[:-2]]
    parts = [part for choice in choices for part in choice["delta"].get("tool_calls", [])]
    assert parts[0]["id"].startswith("call_")
    assert parts[0]["type"] == "function"
    assert parts[0]["function"]["name"] == "weather"
    assert not any("name" in part["function"] or "id" in part for part in parts[1:])
    assert "".join(part["function"]["arguments"] for part in parts) == '{"city": "Oslo"}'
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert not any(choice["delta"].get("content") for choice in choices)
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["tool_calls"]


@pytest.mark.parametrize("max_tokens", [1, 5, 12, 20])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_that_is_cut_ends_with_length(max_tokens: int, stream: bool) -> None:
    under_test = make_app(reply=lambda prompt, index: CALL)
    reply = await under_test.chat(tools=[WEATHER], tool_choice="required", max_tokens=max_tokens, stream=stream)
    assert '"finish_reason":"length"' in reply.text
    assert "tool_calls" not in [word for word in reply.text.split('"finish_reason":"')[1:] if word[:10] == "tool_calls"]


async def test_none_keeps_the_tools_from_the_prompt_and_auto_shows_them() -> None:
    template = "{{ tools | tojson }}{{ messages[0].content }}"
    lengths = {}
    for choice in ("none", "auto", None):
        under_test = make_app(template=template)
        reply = await under_test.chat(tools=[PLAIN], tool_choice=choice, max_tokens=3)
        lengths[choice] = reply.json["usage"]["prompt_tokens"]
        assert reply.json["choices"][0]["message"]["content"]
        assert "tool_calls" not in reply.json["choices"][0]["message"]
    assert lengths["none"] < lengths["auto"] == lengths[None]


async def test_a_bare_tool_and_a_cut_call_in_the_history_are_accepted() -> None:
    bare = {"type": "function", "function": {"name": "t", "description": None, "parameters": {}}}
    history = [
        *HISTORY,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "t", "arguments": "{"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "sunny"},
    ]
    assert (await make_app().chat(messages=history, tools=[bare], max_tokens=2)).status_code == 200


def test_tools_too_big_to_become_a_grammar_are_refused_before_anything_is_made_of_them() -> None:
    tools = msgspec.convert(
        [{"type": "function", "function": {"name": "f", "parameters": {"description": "x" * 1000}}}], list[Tool]
    )
    with pytest.raises(BadRequestError, match=r"tools has 1\d* bytes; to force a call, at most 999 are taken"):
        forced_calls(tools, "required", True, Limits(max_grammar_bytes=999))
    assert forced_calls(tools, "auto", True, Limits(max_grammar_bytes=999)) is None


def allowing(*names: str, mode: str = "required") -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


async def test_a_call_can_be_forced_to_be_one_of_some_tools() -> None:
    under_test = make_app(reply=lambda prompt, index: CALL)
    other = {"type": "function", "function": {"name": "clock"}}
    choice = (await under_test.chat(tools=[other, WEATHER], tool_choice=allowing("weather"))).json["choices"][0]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "weather"
    assert "clock" not in str(under_test.engine.prompts[0].sampling_params.grammar)


@pytest.mark.parametrize(
    "choice",
    [
        allowing(),
        allowing("weather", "nobody"),
        allowing("weather", mode="sometimes"),
        allowing(*["weather"] * 1000),
        {"type": "allowed_tools"},
        {"type": "function"},
    ],
)
async def test_a_choice_of_tools_that_are_not_there_is_refused(choice: dict[str, Any]) -> None:
    reply = await make_app().chat(tools=[WEATHER], tool_choice=choice)
    assert (reply.status_code, reply.json["error"]["param"]) == (400, "tool_choice")
