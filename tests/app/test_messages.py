"""POST /v1/messages and count_tokens from end to end of the application: answers, streams, refusals, keys."""

from __future__ import annotations

import json
import re
from typing import Any

import attrs
import jsonschema
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from app.factory import create_app
from app.limits import Limits
from app.openapi import openapi_document
from app.schemas.message_events import EVENTS
from app.schemas.messages import MessagesRequest
from protocol.errors import DeadlineError, UnavailableError
from protocol.messages import FinishReason
from tests.helpers.app_under_test import MODEL, AppUnderTest, Reply, make_app
from tests.helpers.asgi import Exchange, http_scope

PATH = "/v1/messages"
USER = {"role": "user", "content": "Hi"}
TOOL = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
CALL = '[{"name": "weather", "parameters": {"city": "Oslo"}}]'
DOCUMENT = openapi_document("1.2.3", Limits(), has_keys=True)


def fields(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 200, "messages": [USER], **more}


async def ask(under_test: AppUnderTest, **more: Any) -> Reply:
    return await under_test.post(PATH, **fields(**more))


def events(reply: Reply) -> list[dict[str, Any]]:
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    *frames, last = reply.text.split("\n\n")
    assert last == ""
    found = []
    for frame in frames:
        name, data = frame.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def validate(name: str, value: Any) -> None:
    whole = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    jsonschema.Draft202012Validator(whole).validate(value)


def error_of(reply: Reply, status: int) -> dict[str, str]:
    assert reply.status_code == status, reply.text
    validate("MessagesErrorBody", reply.json)
    assert reply.json["request_id"] == reply.headers["Request-Id"] == reply.headers["X-Request-Id"]
    return reply.json["error"]


# ---------------------------------------------------------------------- answers


async def test_a_plain_answer_and_a_streamed_one_say_the_same() -> None:
    plain = (await ask(make_app(), max_tokens=4)).json
    told = events(await ask(make_app(), max_tokens=4, stream=True))
    validate("MessagesAnswer", plain)
    for event in told:
        validate(next(kind.__name__ for kind in EVENTS if kind.__struct_config__.tag == event["type"]), event)
    assert re.fullmatch("msg_[0-9a-f]{32}", plain["id"])
    assert plain["content"] == [{"type": "text", "text": " Over the water"}]
    assert "".join(event["delta"]["text"] for event in told if event["type"] == "content_block_delta") == (
        " Over the water"
    )
    assert plain["stop_reason"] == told[-2]["delta"]["stop_reason"] == "max_tokens"
    assert plain["usage"] == told[-2]["usage"]


async def test_a_stream_is_exactly_this() -> None:
    reply = await ask(make_app(), max_tokens=1, stream=True)
    usage = '"input_tokens":15,"cache_creation_input_tokens":0,"cache_read_input_tokens":2,"output_tokens":1'
    said = re.sub("msg_[0-9a-f]+", "msg_X", reply.text)
    assert said == (
        'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_X","type":"message",'
        f'"role":"assistant","model":"{MODEL}","content":[],"stop_reason":null,"stop_sequence":null,'
        f'"usage":{{{usage}}}}}}}\n\n'
        'event: ping\ndata: {"type":"ping"}\n\n'
        'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
        '"content_block":{"type":"text","text":""}}\n\n'
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        '"delta":{"type":"text_delta","text":" Over"}}\n\n'
        'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
        'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"max_tokens",'
        f'"stop_sequence":null}},"usage":{{{usage},"output_tokens_details":{{"thinking_tokens":0}}}}}}\n\n'
        'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    )


async def test_a_stream_tells_as_many_tokens_at_a_time_as_the_operator_says() -> None:
    def texts(reply: Reply) -> list[str]:
        return [event["delta"]["text"] for event in events(reply) if event["type"] == "content_block_delta"]

    under_test = make_app()
    every = texts(await ask(under_test, max_tokens=6, stream=True))
    under_test.app = create_app(attrs.evolve(under_test.services, stream_interval=4))
    assert texts(await ask(under_test, max_tokens=6, stream=True)) == [every[0], "".join(every[1:5]), every[5]]


async def test_the_priority_header_goes_before_the_body_s() -> None:
    under_test = make_app()
    body = json.dumps(fields(priority=4)).encode()
    for header, priority in ((None, 4), ("-7", -7)):
        assert (await under_test.send("POST", PATH, body, x_vllm_priority=header)).status_code == 200
        assert under_test.engine.prompts[-1].priority == priority
    assert error_of(await under_test.send("POST", PATH, body, x_vllm_priority="high"), 400)["message"]


async def test_a_stop_sequence_is_named() -> None:
    body = (await ask(make_app(), stop_sequences=["thin", "mist"])).json
    assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", "thin")
    assert body["content"][0]["text"].endswith("hung a ")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "any", "disable_parallel_tool_use": True}])
async def test_a_forced_call_is_a_block_with_its_input(choice: dict[str, Any], stream: bool) -> None:
    text = CALL[1:-1] if "disable_parallel_tool_use" in choice else CALL
    under_test = make_app(reply=lambda prompt, index: text)
    reply = await ask(under_test, tools=[TOOL], tool_choice=choice, stream=stream)
    if stream:
        told = events(reply)
        assert told[2]["content_block"]["name"] == "weather"
        pieces = [event["delta"]["partial_json"] for event in told if event["type"] == "content_block_delta"]
        assert json.loads("".join(pieces)) == {"city": "Oslo"}
        assert told[-2]["delta"]["stop_reason"] == "tool_use"
    else:
        (block,) = reply.json["content"]
        assert (block["type"], block["name"], block["input"]) == ("tool_use", "weather", {"city": "Oslo"})
        assert reply.json["stop_reason"] == "tool_use"
    assert under_test.engine.prompts[0].sampling_params.grammar is not None


async def test_a_call_that_the_limit_cuts_is_no_tool_use() -> None:
    under_test = make_app(reply=lambda prompt, index: CALL)
    cut = len(under_test.services.tokenizer.encode(CALL[:-6], add_special_tokens=False))
    body = (await ask(under_test, tools=[TOOL], tool_choice={"type": "any"}, max_tokens=cut)).json
    assert body["stop_reason"] == "max_tokens"
    (block,) = body["content"]
    assert list(block["input"]) == ["INVALID_JSON"]


async def test_an_answer_that_the_client_has_begun_is_not_begun_again() -> None:
    under_test = make_app()
    assert (await ask(under_test, messages=[USER, {"role": "assistant", "content": "Once"}])).status_code == 200
    prompt = under_test.services.tokenizer.decode(under_test.engine.prompts[0].prompt_token_ids)
    assert prompt.endswith("<|im_start|>assistant\nOnce")


async def test_a_format_is_a_grammar() -> None:
    under_test = make_app()
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    reply = await ask(under_test, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert reply.status_code == 200
    assert under_test.engine.prompts[0].sampling_params.grammar is not None


async def test_what_is_counted_is_what_is_computed() -> None:
    for more in (
        {},
        {"system": "Be brief"},
        {"messages": [USER, {"role": "assistant", "content": "Once"}]},
        {"messages": [USER] * 3, "thinking": {"type": "disabled"}},
    ):
        usage = (await ask(make_app(), **more)).json["usage"]
        counted = await make_app().post(f"{PATH}/count_tokens", **fields(**more))
        validate("CountTokensAnswer", counted.json)
        assert counted.json == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


# ---------------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("more", "status", "kind", "told"),
    [
        ({"model": "claude-opus-4"}, 404, "not_found_error", "claude-opus-4"),
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens must be at least 1, not 0"),
        ({"max_tokens": 10_000}, 400, "invalid_request_error", "256"),
        ({"temperature": 9}, 400, "invalid_request_error", "temperature must be between 0.0 and 2.0, not 9"),
        ({"messages": []}, 400, "invalid_request_error", "messages must not be empty"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "invalid_request_error", "'image'"),
        ({"tools": [TOOL] * 2}, 400, "invalid_request_error", "same name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, 400, "invalid_request_error", "'x'"),
        ({"stop_sequences": "END"}, 400, "invalid_request_error", "stop_sequences"),
    ],
)
async def test_mistakes_are_told_in_anthropic_s_shape(more: Any, status: int, kind: str, told: str) -> None:
    under_test = make_app()
    error = error_of(await ask(under_test, **more), status)
    assert error["type"] == kind
    assert told in error["message"]
    assert under_test.engine.prompts == []


def bounded_numbers() -> list[tuple[str, str, float]]:
    """Field, keyword and bound of all that the document bounds."""
    found = []
    for name, schema in DOCUMENT["components"]["schemas"]["MessagesRequest"]["properties"].items():
        for kind in schema.get("anyOf", [schema]):
            found += [(name, keyword, kind[keyword]) for keyword in kind if "imum" in keyword.lower()]
    return found


@pytest.mark.parametrize(("name", "keyword", "value"), bounded_numbers())
async def test_numbers_are_taken_up_to_the_documented_bound(name: str, keyword: str, value: float) -> None:
    step = 1 if isinstance(value, int) else 1e-9
    beyond = value + step if keyword in ("maximum", "exclusiveMaximum") else value - step
    if keyword.startswith("exclusive"):
        value, beyond = value + 0.5, value
    assert (await ask(make_app(), **{name: value})).status_code == 200
    assert error_of(await ask(make_app(), **{name: beyond}), 400)["message"].startswith(name)


@pytest.mark.parametrize(
    ("method", "path", "body", "content_type", "status", "kind"),
    [
        ("GET", PATH, b"", "application/json", 405, "invalid_request_error"),
        ("POST", PATH + "/batches", b"{}", "application/json", 404, "not_found_error"),
        ("POST", PATH, b"{", "application/json", 400, "invalid_request_error"),
        ("POST", PATH, b"{}", "application/json", 400, "invalid_request_error"),
        ("POST", PATH, b"{}", "text/plain", 415, "invalid_request_error"),
        ("POST", PATH, b" " * 300, "application/json", 413, "request_too_large"),
        ("POST", PATH + "/count_tokens", b"{}", "application/json", 400, "invalid_request_error"),
    ],
)
async def test_what_never_reaches_the_model_is_told_in_it_too(
    method: str, path: str, body: bytes, content_type: str, status: int, kind: str
) -> None:
    under_test = make_app(limits=Limits(max_body_bytes=200))
    reply = await under_test.send(method, path, body, content_type=content_type, content_length=str(len(body)))
    assert error_of(reply, status)["type"] == kind


async def test_neighbours_keep_openai_s_shape() -> None:
    for path in ("/v1/message", "/v1/messagesx", "/v2/messages"):
        assert "type" not in (await make_app().post(path)).json


@pytest.mark.parametrize(
    ("refusal", "status", "kind", "header", "value"),
    [
        (UnavailableError("Too many requests"), 503, "overloaded_error", "Retry-After", "1"),
        (DeadlineError("It took too long"), 504, "timeout_error", "X-Should-Retry", "false"),
    ],
)
async def test_what_is_not_the_client_s_fault(refusal: Any, status: int, kind: str, header: str, value: str) -> None:
    for stream in (False, True):
        reply = await ask(make_app(refusal=refusal), stream=stream)
        assert error_of(reply, status)["type"] == kind
        assert reply.headers[header] == value


@pytest.mark.parametrize(
    ("engine", "kind"),
    [
        ({"fails_after": {0: 2}}, "api_error"),
        ({"fails_after": {0: 2}, "failure": FinishReason.ABORT}, "overloaded_error"),
        ({"dies_after": 2}, "api_error"),
        ({"dies_after": 0}, "api_error"),
    ],
)
async def test_a_stream_that_fails_ends_with_an_error_event(engine: dict[str, Any], kind: str) -> None:
    told = events(await ask(make_app(**engine), stream=True))
    assert [event["type"] for event in told].index("error") == len(told) - 1
    validate("MessagesErrorBody", told[-1])
    assert told[-1]["error"]["type"] == kind


# ---------------------------------------------------------------------- keys


async def status_with(path: str, *headers: tuple[bytes, bytes], root_path: str = "") -> Exchange:
    under_test = make_app(api_keys=("sesame", "other"))
    sent = [(b"content-type", b"application/json"), *headers]
    exchange = Exchange(http_scope("POST", root_path + path, sent, root_path), json.dumps(fields(prompt="Hi")).encode())
    await exchange.run(under_test.app)
    assert (exchange.status == 200) == (len(under_test.engine.prompts) == 1)
    return exchange


BARE = (b"x-api-key", b"sesame")
BEARER = (b"authorization", b"Bearer sesame")


@pytest.mark.parametrize("root_path", ["", "/llm"])
async def test_the_key_may_come_in_either_header_or_the_same_one_in_both(root_path: str) -> None:
    for headers in (
        [BARE],
        [BEARER],
        [BARE, BEARER],
        [(b"X-Api-Key", b" other ")],
        [(b"authorization", b"bearer other")],
    ):
        assert (await status_with(PATH, *headers, root_path=root_path)).status == 200
    wrong = [(b"x-api-key", value) for value in (b"", b"sesam", b"Bearer sesame", b"sesame other", b"caf\xe9")]
    others = [(b"authorization", value) for value in (b"", b"Bearer", b"Bearer other", b"Basic sesame")]
    both = [[BARE, other] for other in others] + [[one, BEARER] for one in wrong]
    for headers in ([], [BARE, BARE], [BARE, BEARER, BEARER], *both, *([one] for one in wrong)):
        exchange = await status_with(PATH, *headers, root_path=root_path)
        assert exchange.status == 401
        assert exchange.num_received == 0
        body = json.loads(exchange.data)
        assert body["error"]["type"] == "authentication_error"
        assert dict(exchange.sent[0]["headers"])[b"request-id"].decode() == body["request_id"]


async def test_other_routes_take_no_bare_key() -> None:
    assert (await status_with("/v1/completions", BARE)).status == 401
    assert (await status_with("/v1/completions", BARE, BEARER)).status == 200
    assert (await status_with("/v1/messagesx", BARE)).status == 401


async def test_without_keys_strangers_are_turned_away_in_this_shape_too() -> None:
    exchange = Exchange(http_scope("POST", PATH, [(b"host", b"evil.example")]))
    await exchange.run(make_app().app)
    assert exchange.status == 403
    assert json.loads(exchange.data)["error"]["type"] == "permission_error"


# ---------------------------------------------------------------------- whatever is sent

ODD = st.one_of(
    st.none(),
    st.sampled_from(
        [0, 1, -1, 0.5, 1e300, 2**63, 10**30, 256, True, "", "a", "auto", "<|im_end|>", [], {}, [1], ["a"]]
    ),
    st.dictionaries(st.sampled_from(["type", "name", "role", "content"]), st.sampled_from(["tool", "any", "text", 1])),
)
TURNS = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "system", "ctx", "x"]),
            "content": st.one_of(
                st.sampled_from(["", "a", None]),
                st.lists(
                    st.fixed_dictionaries(
                        {"type": st.sampled_from(["text", "thinking", "tool_use", "tool_result", "image"])},
                        optional={
                            "text": st.just("t"),
                            "thinking": st.just("h"),
                            "id": st.just("i"),
                            "name": st.just("n"),
                            "input": st.sampled_from([{}, {"a": 10**30}, None, 1]),
                            "tool_use_id": st.just("i"),
                            "content": st.sampled_from(["r", [{"type": "text", "text": "r"}], [{"type": "image"}]]),
                        },
                    ),
                    max_size=3,
                ),
            ),
        }
    ),
    max_size=4,
)


@settings(max_examples=40)
@given(
    path=st.sampled_from([PATH, PATH + "/count_tokens"]),
    turns=TURNS,
    more=st.dictionaries(st.sampled_from(MessagesRequest.__struct_fields__), ODD, max_size=4),
)
def test_any_request_is_answered_or_refused(path: str, turns: Any, more: dict[str, Any]) -> None:
    under_test = make_app()
    body = {**fields(), "messages": turns, **more}
    reply = trio.run(lambda: under_test.post(path, **body))
    if reply.status_code != 200:
        assert reply.status_code in (400, 404), reply.text
        error_of(reply, reply.status_code)
        assert under_test.engine.prompts == []
    elif body.get("stream") and path == PATH:
        assert events(reply)[-1] == {"type": "message_stop"}
    else:
        validate("MessagesAnswer" if path == PATH else "CountTokensAnswer", reply.json)
    assert under_test.engine.num_requests == 0
