"""POST /v1/responses from end to end of the application: answers, events, refusals, failures, and turns with tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import attrs
import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from app.dialects.dialect import Dialect
from app.factory import create_app
from app.responses.event_log import EventLog
from app.responses.input_items import as_input
from app.responses.tool_box import ServerTool
from app.schemas.chat import FunctionDefinition, Tool
from app.schemas.responses import (
    InputItem,
    McpCallItem,
    McpListToolsItem,
    ResponsesRequest,
    ResponseTool,
    text_error,
)
from app.tool_namespace import ToolNamespace
from protocol.errors import DeadlineError, UnavailableError
from protocol.messages import FinishReason
from tests.helpers.app_under_test import MODEL, AppUnderTest, Reply, make_app
from tests.helpers.asgi import Exchange, http_scope
from tests.helpers.fake_engine import TEXT, FakeEngine

PATH = "/v1/responses"
EVENT = TypeAdapter(ResponseStreamEvent)
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": None,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TEMPLATE = """\
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}<|im_start|>assistant
"""
MCP = {"type": "mcp", "server_label": "one", "server_url": "https://one.test/mcp", "require_approval": "never"}


async def ask(under_test: AppUnderTest, given: Any = "Hi", **fields: Any) -> dict[str, Any]:
    reply = await under_test.post(PATH, input=given, **fields)
    assert reply.status_code == 200, reply.text
    Response.model_validate(reply.json)
    found: dict[str, Any] = reply.json
    return found


def events(reply: Reply) -> list[dict[str, Any]]:
    """Each held to what OpenAI's own client knows."""
    assert reply.status_code == 200, reply.text
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    *frames, last = reply.text.split("\n\n")
    assert last == ""
    found = []
    for frame in frames:
        name, data = frame.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
        EVENT.validate_python(found[-1])
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def kinds(found: list[dict[str, Any]]) -> list[str]:
    """Types in order, each run of one as one."""
    types = [event["type"].removeprefix("response.") for event in found]
    return [kind for at, kind in enumerate(types) if at == 0 or kind != types[at - 1]]


def error_of(reply: Reply, status: int) -> dict[str, Any]:
    assert reply.status_code == status, reply.text
    found: dict[str, Any] = reply.json["error"]
    assert set(found) == {"message", "type", "param", "code"}
    return found


def prompt_of(under_test: AppUnderTest, index: int = -1) -> str:
    return under_test.services.tokenizer.decode(under_test.engine.prompts[index].prompt_token_ids)


def scripted(*texts: str, **options: Any) -> AppUnderTest:
    """A model that writes these texts, turn by turn, and shows its thoughts and calls."""
    script = list(texts)
    return make_app(
        template=TEMPLATE,
        reply=lambda prompt, index: script.pop(0) if len(script) > 1 else script[0],
        dialect=Dialect("hermes", "qwen3"),
        **{"max_model_len": 4096, "tokens_per_delta": 3} | options,
    )


# ---------------------------------------------------------------------- answers


async def test_a_whole_answer_tells_its_request_and_what_it_took():
    found = await ask(make_app(), max_output_tokens=50, instructions="Be kind.", temperature=0.5, metadata={"a": "b"})

    assert (found["id"][:5], found["object"], found["model"]) == ("resp_", "response", MODEL)
    assert (found["status"], found["completed_at"], found["error"]) == ("completed", 1_800_000_000, None)
    assert (found["instructions"], found["temperature"], found["metadata"]) == ("Be kind.", 0.5, {"a": "b"})
    [message] = found["output"]
    assert (message["role"], message["status"], message["content"][0]["text"]) == ("assistant", "completed", TEXT)
    usage = found["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["input_tokens_details"]["cached_tokens"] == 2
    assert usage["output_tokens_details"]["output_tokens_per_turn"] == [usage["output_tokens"]]


async def test_an_answer_that_is_cut_is_incomplete():
    found = await ask(make_app(), max_output_tokens=3)
    assert (found["status"], found["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (found["output"][0]["status"], found["usage"]["output_tokens"]) == ("incomplete", 3)


async def test_the_context_bounds_an_answer_as_max_output_tokens_does():
    under_test = make_app(max_model_len=40)
    await ask(under_test, max_output_tokens=10_000)
    prompt = under_test.engine.prompts[0]
    assert prompt.sampling_params.max_tokens == 40 - len(prompt.prompt_token_ids)


async def test_the_events_of_a_text_come_in_openai_s_order_and_add_up():
    found = events(await make_app().post(PATH, input="Hi", stream=True))

    assert kinds(found) == [
        *("created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    last = found[-1]["response"]
    assert "".join(event.get("delta", "") for event in found) == TEXT
    assert last["output"] == [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert last["output"][0]["content"][0]["text"] == TEXT
    assert last["usage"]["output_tokens"] > 0
    assert {event["item_id"] for event in found if "item_id" in event} == {last["output"][0]["id"]}


async def test_thoughts_text_and_calls_are_items_of_their_own():
    under_test = scripted("<think>\nSnow?\n</think>\n\nLet me look.\n" + CALL)
    found = events(await under_test.post(PATH, input="Weather?", tools=[WEATHER], stream=True))

    assert kinds(found)[2:] == [
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    thoughts, text, call = found[-1]["response"]["output"]
    assert thoughts["content"][0]["text"].strip() == "Snow?"
    assert text["content"][0]["text"].strip() == "Let me look."
    assert (call["name"], json.loads(call["arguments"])) == ("weather", {"city": "Oslo"})
    assert found[-1]["response"]["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


async def test_a_call_is_answered_in_the_next_request():
    under_test = scripted(CALL, "Cold.")
    first = await ask(under_test, "Weather?", tools=[WEATHER])
    call = first["output"][0]
    told = {"type": "function_call_output", "call_id": call["call_id"], "output": "snow"}
    second = await ask(under_test, [{"role": "user", "content": "Weather?"}, call, told], tools=[WEATHER])

    assert second["output"][0]["content"][0]["text"] == "Cold."
    assert '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>' in prompt_of(under_test)
    assert "<|im_start|>tool\nsnow<|im_end|>" in prompt_of(under_test)


async def test_a_call_can_be_forced():
    under_test = scripted('{"city": "Oslo"}')
    choice = {"type": "function", "name": "weather"}
    found = await ask(under_test, tools=[WEATHER], tool_choice=choice)
    assert [(item["type"], item["arguments"]) for item in found["output"]] == [("function_call", '{"city": "Oslo"}')]
    assert (found["tool_choice"], found["tools"]) == (choice, [WEATHER])


async def test_a_text_format_is_a_grammar():
    under_test = make_app(reply=lambda prompt, index: '{"a": 1}')
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}
    found = await ask(under_test, text={"format": form})
    assert found["text"]["format"] == form
    assert under_test.engine.prompts[0].sampling_params.grammar is not None


async def test_log_probabilities_are_told_where_they_are_included():
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "max_output_tokens": 4}
    found = events(await make_app().post(PATH, input="Hi", stream=True, **fields))
    told = [position for event in found if "delta" in event for position in event["logprobs"]]
    whole = found[-1]["response"]["output"][0]["content"][0]["logprobs"]
    assert told == whole
    assert len(whole) == 4
    assert all(len(position["top_logprobs"]) == 2 for position in whole)
    assert (await ask(make_app()))["output"][0]["content"][0]["logprobs"] == []


async def test_an_answer_of_nothing_is_an_empty_message():
    found = await ask(make_app(reply=lambda prompt, index: ""))
    assert [part["text"] for item in found["output"] for part in item["content"]] == [""]


async def test_effort_none_turns_thoughts_off_where_the_template_can():
    under_test = make_app(template="{{ enable_thinking }} {{ messages[0].content }}")
    await ask(under_test, reasoning={"effort": "none"})
    assert prompt_of(under_test).startswith("False")


async def test_truncation_auto_drops_the_oldest_items_that_do_not_fit():
    under_test = make_app(max_model_len=120)
    items = [{"role": "user", "content": f"Number {n} is a long one."} for n in range(30)]
    assert error_of(await under_test.post(PATH, input=items), 400)["code"] == "context_length_exceeded"

    found = await ask(under_test, items, truncation="auto", instructions="Count.", max_output_tokens=20)

    assert found["truncation"] == "auto"
    assert "Count." in prompt_of(under_test)
    assert "Number 29 " in prompt_of(under_test)
    assert "Number 1 " not in prompt_of(under_test)
    assert len(under_test.engine.prompts[0].prompt_token_ids) <= 100


async def test_truncation_auto_leaves_the_last_item_and_the_call_that_it_answers():
    under_test = make_app(max_model_len=120)
    long = "Number 1 is a long one. " * 20
    greeting = {"role": "user", "content": "Hi"}
    answered = {"type": "function_call_output", "call_id": "a", "output": "rainy"}
    for items in (
        [greeting | {"content": long}],
        [greeting, greeting | {"content": long}],
        [greeting, CALLED, answered | {"output": long}],
    ):
        refused = await under_test.post(PATH, input=items, truncation="auto")
        assert error_of(refused, 400)["code"] == "context_length_exceeded"

    await ask(under_test, [greeting | {"content": long}, CALLED, answered], truncation="auto", max_output_tokens=4)

    assert "Number 1 " not in prompt_of(under_test)
    assert "rainy" in prompt_of(under_test)


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 2**31}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"tools": [{"type": "file_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [WEATHER] * 200}, "tools"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "tools": [{"type": "web_search"}]}}, "tool_choice.type"),
        ({"tool_choice": {"type": "mcp", "server_label": "one"}}, "tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "schema": {"type": 5}}}}, "text.format"),
        ({"text": {"verbosity": "huge"}}, "text.verbosity"),
        ({"reasoning": {"effort": "heroic"}}, "reasoning.effort"),
        ({"truncation": "some"}, "truncation"),
        ({"include": ["secrets"]}, "include[0]"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: ""}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"user": "u" * 513}, "user"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"background": True}, "background"),
        ({"max_tool_calls": -1}, "max_tool_calls"),
        ({"stream_interval": 0}, "stream_interval"),
    ],
)
async def test_what_is_wrong_is_named(fields, param):
    under_test = make_app()
    refused = error_of(await under_test.post(PATH, **{"input": "Hi"} | fields), 400)
    assert refused["param"] == param
    assert param.split("[")[0].split(".")[0] in refused["message"]
    assert under_test.engine.prompts == []


async def test_hundreds_of_wrong_items_get_a_short_refusal():
    items = [{"type": "message", "role": "user", "content": n} for n in range(500)]
    reply = await make_app().post(PATH, input=items)
    assert error_of(reply, 400)["param"] == "input[0].content"
    assert len(reply.data) < 500


async def test_an_earlier_response_that_is_not_kept_is_not_found():
    for response_id in ("resp_1", "../x", "resp_" + "a" * 10_000):
        refused = error_of(await make_app().post(PATH, input="Hi", previous_response_id=response_id), 404)
        assert refused["code"] == "previous_response_not_found"
        assert len(refused["message"]) < 300


async def test_mcp_servers_are_refused_by_their_label_unless_the_operator_allows_them():
    assert "'one'" in error_of(await make_app().post(PATH, input="Hi", tools=[MCP]), 400)["message"]


async def test_a_full_queue_is_a_503_also_for_a_stream():
    for stream in (False, True):
        under_test = make_app(refusal=UnavailableError("Too many requests are queued"))
        reply = await under_test.post(PATH, input="Hi", stream=stream)
        assert "queued" in error_of(reply, 503)["message"]
        assert reply.headers["Retry-After"] == "1"


CALLED = {"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{}"}
ANSWERED = {"type": "function_call_output", "call_id": "a", "output": ""}
GOOD: dict[str, list[Any]] = {
    "input": [
        "Hi",
        [{"role": "user", "content": "Hi"}],
        [{"type": "function_call_output", "call_id": "a", "output": ""}],
    ],
    "tools": [[WEATHER], [MCP], []],
    "tool_choice": [{"type": "function", "name": "weather"}, "auto", "required"],
    "text": [{"format": {"type": "json_object"}}, {"format": None}],
    "reasoning": [{"effort": "high"}, {}],
    "truncation": ["auto", "disabled"],
    "include": [["message.output_text.logprobs"], []],
    "metadata": [{"a": "b"}],
    "logit_bias": [{"5": 1}],
}
ODD = st.one_of(
    st.sampled_from([None, True, False, 0, 1, -1, 0.5, 2**31, 2**64, 10**30, "", "a", "<|im_end|>", "\x00", [], {}]),
    st.lists(st.sampled_from(["", 1, None, {}, {"type": "message"}]), max_size=3),
    st.dictionaries(st.sampled_from(["a", "type", "format"]), st.sampled_from([1, "text", None, {}]), max_size=2),
)
FIELDS = st.dictionaries(st.sampled_from(sorted(ResponsesRequest.__struct_fields__)), st.none(), max_size=5).flatmap(
    lambda names: st.fixed_dictionaries(
        {name: st.one_of(ODD, st.sampled_from(GOOD[name])) if name in GOOD else ODD for name in names}
    )
)


@settings(max_examples=60)
@given(FIELDS)
def test_any_request_is_answered_or_refused(fields):
    under_test = make_app()
    reply = trio.run(lambda: under_test.post(PATH, **{"input": "Hi"} | fields))
    assert reply.status_code in (200, 400, 404, 501), reply.text
    if reply.status_code != 200:
        error_of(reply, reply.status_code)
        assert len(reply.data) < 2000
    elif fields.get("stream"):
        assert events(reply)[-1]["type"] in ("response.completed", "response.incomplete")
    else:
        Response.model_validate(reply.json)
    assert under_test.engine.num_requests == 0


# ---------------------------------------------------------------------- failures


async def test_a_failure_within_a_stream_is_told_as_the_response_s_end():
    under_test = make_app(fails_after={0: 3})
    found = events(await under_test.post(PATH, input="Hi", stream=True))

    assert kinds(found)[-4:] == ["output_text.done", "content_part.done", "output_item.done", "failed"]
    failed = found[-1]["response"]
    assert failed["error"] == {"code": "server_error", "message": "The grammar went wrong"}
    assert (failed["status"], failed["output"][0]["status"]) == ("failed", "incomplete")
    assert failed["usage"]["output_tokens"] == 3


async def test_a_failure_of_a_whole_answer_is_an_error():
    assert (
        error_of(await make_app(fails_after={0: 3}).post(PATH, input="Hi"), 500)["message"] == "The grammar went wrong"
    )
    dead = error_of(await make_app(dies_after=2).post(PATH, input="Hi"), 500)
    assert dead["message"] == "The engine died"


async def test_a_drain_fails_what_is_not_done():
    under_test = make_app(fails_after={0: 2}, failure=FinishReason.ABORT)
    found = events(await under_test.post(PATH, input="Hi", stream=True))
    assert (found[-1]["type"], found[-1]["response"]["status"]) == ("response.failed", "failed")


async def test_a_response_that_is_late_fails(autojump_clock):
    under_test = make_app()
    under_test.engine.hold()
    assert error_of(await under_test.post(PATH, input="Hi", timeout=5), DeadlineError.status)["param"] == "timeout"
    found = events(await under_test.post(PATH, input="Hi", timeout=5, stream=True))
    assert "within 5 s" in found[-1]["response"]["error"]["message"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_ends_its_response(stream, nursery):
    under_test = make_app()
    under_test.engine.hold()
    body = json.dumps({"input": "Hi", "stream": stream}).encode()
    exchange = Exchange(http_scope("POST", PATH, [(b"content-type", b"application/json")]), body)
    nursery.start_soon(exchange.run, under_test.app)
    await trio.testing.wait_all_tasks_blocked()
    under_test.engine.let()
    await trio.testing.wait_all_tasks_blocked()
    assert under_test.engine.num_requests == 1
    exchange.disconnected.set()
    await trio.testing.wait_all_tasks_blocked()
    assert (under_test.engine.num_requests, under_test.engine.num_aborted) == (0, 1)


async def test_a_stream_may_tell_several_tokens_at_a_time_and_tells_all_before_a_failure():
    for options, text in (({}, TEXT), ({"fails_after": {0: 7}}, None)):
        found = events(await make_app(**options).post(PATH, input="Hi", stream=True, stream_interval=4))
        deltas = [event["delta"] for event in found if "delta" in event]
        whole = next(event["text"] for event in found if event["type"] == "response.output_text.done")
        assert "".join(deltas) == whole
        assert text in (None, whole)
        assert len(deltas) <= 2 + found[-1]["response"]["usage"]["output_tokens"] // 4


async def test_a_stream_with_nothing_to_tell_says_that_it_is_alive(autojump_clock, nursery):
    under_test = make_app()
    services = attrs.evolve(under_test.services, keep_alive_seconds=10.0)
    under_test = AppUnderTest(create_app(services), under_test.engine, services)
    under_test.engine.hold()

    async def let_later() -> None:
        await trio.sleep(25)
        under_test.engine.let(1000)

    nursery.start_soon(let_later)
    reply = await under_test.post(PATH, input="Hi", stream=True)
    assert reply.text.count(": keep-alive\n\n") == 2
    assert '"type":"response.completed"' in reply.text


# ---------------------------------------------------------------------- keeping


@attrs.define
class Keeper:
    """Has responses in memory, and says what it was told when."""

    keeps: bool = True
    told: list[str] = attrs.field(factory=list)
    kept: dict[str, list[InputItem]] = attrs.field(factory=dict)

    async def history(self, response_id: str) -> list[InputItem]:
        return self.kept[response_id]

    async def began(self, log: EventLog, input_items: Sequence[InputItem]) -> None:
        self.told.append(f"began with {len(input_items)} after {log.num_events} events")
        self.kept[log.id] = list(input_items)

    async def ended(self, log: EventLog) -> None:
        await trio.lowlevel.checkpoint()
        assert not log.ended
        assert log.last is not None
        self.told.append(log.response.status)
        self.kept[log.id] += [as_input(item) for item in log.items]


def with_keeper(under_test: AppUnderTest) -> tuple[AppUnderTest, Keeper]:
    keeper = Keeper()
    services = attrs.evolve(under_test.services, response_keeper=keeper)
    return AppUnderTest(create_app(services), under_test.engine, services), keeper


@pytest.mark.parametrize("stream", [True, False])
async def test_a_response_is_kept_before_its_end_is_told(stream):
    under_test, keeper = with_keeper(make_app())
    reply = await under_test.post(PATH, input="Hi", stream=stream)
    found = events(reply)[-1]["response"] if stream else reply.json
    assert found["store"] is True
    assert keeper.told == ["began with 1 after 1 events", "completed"]


async def test_a_response_goes_on_from_an_earlier_one_without_its_instructions():
    under_test, _ = with_keeper(scripted("One.", "Two."))
    first = await ask(under_test, "First?", instructions="Be brief.")
    second = await ask(under_test, "Second?", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    assert prompt_of(under_test) == (
        "<|im_start|>user\nFirst?<|im_end|>\n<|im_start|>assistant\nOne.<|im_end|>\n"
        "<|im_start|>user\nSecond?<|im_end|>\n<|im_start|>assistant"
    )


async def test_what_is_not_to_be_stored_is_not_kept():
    under_test, keeper = with_keeper(make_app())
    assert (await ask(under_test, store=False))["store"] is False
    assert keeper.told == []


async def test_a_response_whose_client_has_left_is_kept_as_cancelled(nursery):
    under_test, keeper = with_keeper(make_app())
    under_test.engine.hold()
    body = json.dumps({"input": "Hi", "stream": True}).encode()
    exchange = Exchange(http_scope("POST", PATH, [(b"content-type", b"application/json")]), body)
    nursery.start_soon(exchange.run, under_test.app)
    await trio.testing.wait_all_tasks_blocked()
    under_test.engine.let(2)
    await trio.testing.wait_all_tasks_blocked()
    exchange.disconnected.set()
    await trio.testing.wait_all_tasks_blocked()
    assert keeper.told[-1] == "cancelled"
    [*_, item] = next(iter(keeper.kept.values()))
    assert (item.role, item.status) == ("assistant", "incomplete")


# ---------------------------------------------------------------------- tools that the server runs


@attrs.define
class Box:
    """One server with one tool, `add`, which may fail or hang."""

    needs_approval: bool = False
    approved: Sequence[McpCallItem] = ()
    listings: Sequence[McpListToolsItem] = (McpListToolsItem(id="mcpl_1", server_label="one"),)
    calls: list[str] = attrs.field(factory=list)
    fails: bool = False
    hangs: bool = False
    told: str = "five"
    breaks: FakeEngine | None = None
    """Dies at its next token once a call has been made."""
    is_empty: bool = False
    """It has no tool after all."""

    async def open(self, tools: Sequence[ResponseTool], items: Sequence[InputItem]) -> Box:
        return self

    @property
    def tools(self) -> Sequence[Tool]:
        if self.is_empty:
            return []
        return [Tool("function", FunctionDefinition("one__add", "Adds.", {"type": "object"}))]

    @property
    def namespaces(self) -> Sequence[ToolNamespace]:
        return [ToolNamespace("one", {"one__add": "add"})]

    def find(self, name: str) -> ServerTool | None:
        return ServerTool("one", "add", self.needs_approval) if name == "one__add" else None

    def name_of(self, server_label: str, name: str) -> str:
        return f"{server_label}__{name}"

    async def call(self, call: McpCallItem) -> McpCallItem:
        self.calls.append(call.arguments)
        if self.hangs:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        if self.breaks is not None:
            self.breaks.dies_after = 1
        if self.fails:
            return msgspec.structs.replace(call, status="failed", error=text_error(self.told))
        return msgspec.structs.replace(call, status="completed", output=self.told)


def with_box(under_test: AppUnderTest, box: Box) -> AppUnderTest:
    services = attrs.evolve(under_test.services, tool_servers=box)
    return AppUnderTest(create_app(services), under_test.engine, services)


def adding(n: int = 1) -> str:
    return f'<tool_call>\n{{"name": "one__add", "arguments": {{"n": {n}}}}}\n</tool_call>'


async def test_calls_of_the_server_s_tools_are_made_and_the_model_goes_on():
    box = Box()
    under_test = with_box(scripted(adding(), "It is five."), box)
    found = events(await under_test.post(PATH, input="How much?", tools=[MCP], stream=True))

    assert kinds(found)[2:-7] == [
        *("output_item.added", "mcp_list_tools.in_progress", "mcp_list_tools.completed", "output_item.done"),
        *("output_item.added", "mcp_call.in_progress", "mcp_call_arguments.delta", "mcp_call_arguments.done"),
        *("mcp_call.completed", "output_item.done"),
    ]
    last = found[-1]["response"]
    assert [item["type"] for item in last["output"]] == ["mcp_list_tools", "mcp_call", "message"]
    assert (last["output"][1]["output"], box.calls) == ("five", ['{"n": 1}'])
    assert "five" in prompt_of(under_test)
    usage = last["usage"]
    assert len(usage["input_tokens_details"]["input_tokens_per_turn"]) == 2
    assert usage["input_tokens"] == sum(usage["input_tokens_details"]["input_tokens_per_turn"])
    num_told = len(under_test.services.tokenizer.encode("five", add_special_tokens=False))
    assert usage["output_tokens_details"]["tool_output_tokens_per_turn"] == [0, num_told]
    assert usage["output_tokens_details"]["tool_output_tokens"] == num_told


async def test_the_model_reads_what_a_call_failed_with():
    under_test = with_box(scripted(adding(), "Well."), Box(fails=True, told="It broke"))
    found = await ask(under_test, tools=[MCP])
    assert found["output"][1]["error"] == {
        "type": "mcp_tool_execution_error",
        "content": [{"type": "text", "text": "It broke"}],
    }
    assert "Error: It broke" in prompt_of(under_test)


async def test_a_server_that_cannot_be_asked_is_a_listing_with_an_error():
    listing = McpListToolsItem(id="mcpl_1", server_label="one", error="refused")
    found = events(await with_box(make_app(), Box(listings=[listing])).post(PATH, input="Hi", tools=[MCP], stream=True))
    assert "mcp_list_tools.failed" in kinds(found)
    assert found[-1]["response"]["output"][0]["error"] == "refused"


async def test_calls_beyond_max_tool_calls_are_refused_and_then_there_are_no_tools():
    box = Box()
    under_test = with_box(scripted(adding(1) + adding(2), "Enough."), box)
    found = await ask(under_test, tools=[MCP], max_tool_calls=1)
    assert [item.get("status") for item in found["output"]] == [None, "completed", "failed", "completed"]
    assert "max_tool_calls is 1" in prompt_of(under_test)
    assert (box.calls, found["status"]) == (['{"n": 1}'], "completed")


async def test_a_model_that_never_stops_calling_is_stopped():
    box = Box()
    under_test = with_box(scripted(adding(), max_model_len=1_000_000), box)
    found = await ask(under_test, tools=[MCP])
    assert found["status"] == "completed"
    assert len(box.calls) == len(under_test.engine.prompts) - 1 == 64


async def test_all_turns_share_max_output_tokens():
    under_test = with_box(scripted(adding(), TEXT), Box())
    first = len(under_test.services.tokenizer.encode(adding(), add_special_tokens=False))
    found = await ask(under_test, tools=[MCP], max_output_tokens=first + 2)
    assert (found["status"], found["usage"]["output_tokens"]) == ("incomplete", first + 2)
    exactly = with_box(scripted(adding(), TEXT), Box())
    found = await ask(exactly, tools=[MCP], max_output_tokens=first)
    assert (found["status"], len(exactly.engine.prompts)) == ("incomplete", 1)


async def test_all_turns_share_min_tokens():
    under_test = with_box(scripted(adding(), TEXT), Box())
    first = len(under_test.services.tokenizer.encode(adding(), add_special_tokens=False))
    found = await ask(under_test, tools=[MCP], max_output_tokens=first + 4, min_tokens=first + 3)
    assert (found["status"], found["usage"]["output_tokens"]) == ("incomplete", first + 4)
    assert [prompt.sampling_params.min_tokens for prompt in under_test.engine.prompts] == [first + 3, 3]


async def test_a_forced_call_is_forced_once():
    under_test = with_box(scripted('[{"name": "one__add", "parameters": {}}]', "Done."), Box())
    found = await ask(under_test, tools=[MCP], tool_choice="required")
    assert [item["type"] for item in found["output"]] == ["mcp_list_tools", "mcp_call", "message"]
    assert [prompt.sampling_params.grammar is None for prompt in under_test.engine.prompts] == [False, True]


ALL_OF_ONE = {"type": "mcp", "server_label": "one"}


async def test_a_call_to_any_tool_of_one_server_can_be_forced_once():
    under_test = with_box(scripted('[{"name": "one__add", "parameters": {}}]', "Done."), Box())
    found = await ask(under_test, tools=[WEATHER, MCP], tool_choice=ALL_OF_ONE)
    assert [item["type"] for item in found["output"]] == ["mcp_list_tools", "mcp_call", "message"]
    assert found["tool_choice"] == ALL_OF_ONE
    first, second = (prompt.sampling_params.grammar for prompt in under_test.engine.prompts)
    assert second is None
    assert "one__add" in str(first)
    assert WEATHER["name"] not in str(first)


GONE = McpListToolsItem(id="mcpl_1", server_label="gone", error="gone: the server cannot be reached: nobody is there")


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        (
            {"type": "mcp", "server_label": "one", "name": "sub"},
            "tool_choice names 'sub', which is none of the tools of the MCP server 'one': these are 'add'",
        ),
        (
            {"type": "mcp", "server_label": "gone", "name": "add"},
            "tool_choice names the MCP server 'gone', which has no tools to be called here (gone: the server cannot be "
            "reached: nobody is there)",
        ),
        (
            {"type": "function", "name": "wether"},
            "tool_choice names 'wether', which is none of the functions in tools: these are 'weather'",
        ),
    ],
)
async def test_a_choice_of_a_tool_that_there_is_not_is_refused_with_those_there_are_or_why_not(choice, told):
    under_test = with_box(make_app(), Box(listings=[GONE]))
    for tool_choice in (choice, {"type": "allowed_tools", "mode": "auto", "tools": [choice]}):
        refused = error_of(await under_test.post(PATH, input="Hi", tools=[MCP, WEATHER], tool_choice=tool_choice), 400)
        assert (refused["message"], refused["param"]) == (told, "tool_choice")


async def test_a_call_that_is_forced_without_any_tool_is_refused_with_what_the_servers_failed_with():
    box = Box(listings=[GONE], is_empty=True)
    refused = error_of(await with_box(make_app(), box).post(PATH, input="Hi", tools=[MCP], tool_choice="required"), 400)
    assert refused["message"] == (
        "tool_choice needs tools, and there are none (gone: the server cannot be reached: nobody is there)"
    )


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_only_allowed_tools_are_called(mode):
    reply = CALL if mode == "auto" else '[{"name": "one__add", "parameters": {}}]'
    under_test = with_box(scripted(reply, CALL), Box())
    choice = {"type": "allowed_tools", "mode": mode, "tools": [ALL_OF_ONE]}
    found = await ask(under_test, tools=[WEATHER, MCP], tool_choice=choice)
    assert "function_call" not in [item["type"] for item in found["output"]]
    assert found["output"][-1]["content"][0]["text"] == CALL
    assert found["tool_choice"] == choice


async def test_a_call_of_the_client_s_ends_the_response_after_the_server_s_are_made():
    box = Box()
    found = await ask(with_box(scripted(adding() + CALL), box), tools=[MCP, WEATHER])
    assert [item["type"] for item in found["output"]] == ["mcp_list_tools", "mcp_call", "function_call"]
    assert (found["status"], len(box.calls)) == ("completed", 1)


async def test_a_call_that_needs_approval_is_asked_for_and_made_when_it_is_given():
    box = Box(needs_approval=True)
    found = events(await with_box(scripted(adding()), box).post(PATH, input="Hi", tools=[MCP], stream=True))
    request = found[-1]["response"]["output"][1]
    assert (request["type"], request["arguments"], box.calls) == ("mcp_approval_request", '{"n": 1}', [])

    approved = McpCallItem(
        id="mcp_1", server_label="one", name="add", arguments='{"n": 1}', status="in_progress",
        approval_request_id=request["id"],
    )  # fmt: skip
    again = Box(approved=[approved], listings=())
    under_test = with_box(scripted("It is five."), again)
    answer = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
    found = events(await under_test.post(PATH, input=[request, answer], tools=[MCP], stream=True))

    assert [item["type"] for item in found[-1]["response"]["output"]] == ["mcp_call", "message"]
    assert again.calls == ['{"n": 1}']
    assert prompt_of(under_test).count("five") == 1


async def test_a_response_that_is_late_in_a_call_fails_and_its_call_is_told_to_have_ended(autojump_clock):
    under_test = with_box(scripted(adding()), Box(hangs=True))
    found = events(await under_test.post(PATH, input="Hi", tools=[MCP], stream=True, timeout=5))
    assert kinds(found)[-3:] == ["mcp_call.failed", "output_item.done", "failed"]
    assert found[-1]["response"]["output"][1]["status"] == "incomplete"


@pytest.mark.parametrize("failing", [True, False])
async def test_a_call_that_is_whole_when_its_turn_is_cut_or_fails_is_told_to_have_ended(failing):
    box = Box()
    text = adding(1) + adding(2)
    under_test = with_box(scripted(text), box)
    num_tokens = len(under_test.services.tokenizer.encode(text, add_special_tokens=False)) - 3
    if failing:
        under_test.engine.fails_after = {0: num_tokens}
    fields = {} if failing else {"max_output_tokens": num_tokens}
    found = events(await under_test.post(PATH, input="Hi", tools=[MCP], stream=True, **fields))

    assert found[-1]["type"] == ("response.failed" if failing else "response.incomplete")
    calls = found[-1]["response"]["output"][1:]
    assert [(call["type"], call["status"]) for call in calls] == [("mcp_call", "incomplete")] * 2
    assert box.calls == []


async def test_what_a_server_is_called_with_is_not_told():
    secret = MCP | {"headers": {"X-Key": "s3cret"}, "authorization": "s3cret"}
    secret["server_url"] += "?key=s3cret"
    reply = await with_box(make_app(), Box()).post(PATH, input="Hi", tools=[secret])
    assert "s3cret" not in reply.text
    assert reply.json["tools"] == [MCP]


async def test_a_conversation_that_outgrows_the_context_fails_with_its_reason():
    under_test = with_box(scripted(adding() + " " + "word " * 40, max_model_len=150), Box())
    found = events(await under_test.post(PATH, input="Hi", tools=[MCP], stream=True))
    error = found[-1]["response"]["error"]
    assert (found[-1]["type"], error["code"]) == ("response.failed", "invalid_prompt")
    assert "maximum context length is 150 tokens" in error["message"]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("truncation", ["disabled", "auto"])
async def test_a_result_that_is_longer_than_the_context_is_cut_to_what_fits_and_says_so(truncation, fails):
    told = '{"word": "many"}\n' * 5000
    box = Box(told=told, fails=fails)
    under_test, keeper = with_keeper(with_box(scripted(adding(), "A lot.", max_model_len=600), box))

    found = await ask(under_test, tools=[MCP], truncation=truncation)

    call, answer = found["output"][1:]
    text = call["error"]["content"][0]["text"] if fails else call["output"]
    kept, note = text.rsplit("\n", 1)
    assert told.startswith(kept)
    assert note == (
        f"[cut: {len(told)} characters do not fit into what is left of the model's context; the first {len(kept)} are "
        "told]"
    )
    assert (found["status"], answer["content"][0]["text"], len(box.calls)) == ("completed", "A lot.", 1)
    assert 300 < len(under_test.engine.prompts[1].prompt_token_ids) <= 450
    assert (found["usage"]["output_tokens_details"]["tool_output_tokens"] > 150) or fails
    assert keeper.told[-1] == "completed"


async def test_results_of_one_turn_share_the_room_that_there_is():
    box = Box(told="word " * 5000)
    under_test = with_box(scripted(adding(1) + adding(2) + adding(3), "A lot.", max_model_len=1000), box)

    found = await ask(under_test, tools=[MCP])

    lengths = [len(item["output"]) for item in found["output"][1:4]]
    assert len(set(lengths)) == 1
    assert len(under_test.engine.prompts[1].prompt_token_ids) <= 800  # with what the template writes


@pytest.mark.parametrize("stream", [True, False])
async def test_a_turn_that_cannot_be_made_after_a_call_ends_the_response_as_failed_and_it_is_kept(stream):
    box = Box(told="word " * 100)
    text = adding() + " " + "word " * 40
    under_test, keeper = with_keeper(with_box(scripted(text, max_model_len=150), box))

    reply = await under_test.post(PATH, input="Hi", tools=[MCP], stream=stream)
    assert reply.status_code == 200, reply.text
    found = events(reply)[-1]["response"] if stream else reply.json
    Response.model_validate(found)

    assert (found["status"], found["error"]["code"]) == ("failed", "invalid_prompt")
    assert "The longest result in it is that of the tool 'add' of the MCP server 'one'" in found["error"]["message"]
    assert [item["type"] for item in found["output"]][:2] == ["mcp_list_tools", "mcp_call"]
    assert found["output"][1]["status"] == "completed"
    assert keeper.told[-1] == "failed"


async def test_an_engine_that_fails_after_a_call_does_not_have_the_client_ask_for_it_again():
    under_test = scripted(adding(), TEXT)
    box = Box(breaks=under_test.engine)
    under_test = with_box(under_test, box)

    reply = await under_test.post(PATH, input="Hi", tools=[MCP])

    assert (reply.status_code, reply.json["status"]) == (200, "failed")
    assert reply.json["error"]["code"] == "server_error"
    assert box.calls == ['{"n": 1}']
