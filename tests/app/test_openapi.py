"""The OpenAPI document says what is there: every route, every field, its bounds, and the answers' own shapes."""

from __future__ import annotations

import html.parser
import json
import re
from typing import Any

import jsonschema
import pytest

from app.limits import Limits
from app.openapi import openapi_document
from app.operations import OPERATIONS
from tests.helpers.app_under_test import AppUnderTest, make_app
from tests.helpers.asgi import Exchange, http_scope

DOCUMENT = openapi_document("1.2.3", Limits(), has_keys=True)
SCHEMAS = DOCUMENT["components"]["schemas"]
PATHS = {
    "CompletionRequest": "/v1/completions",
    "ChatRequest": "/v1/chat/completions",
    "EmbeddingRequest": "/v1/embeddings",
}
NEEDED = {
    "top_logprobs": {"logprobs": True},
    "max_tokens": {"ignore_eos": True},
    "logprobs": {"max_tokens": 2},
    "prompt_logprobs": {"max_tokens": 2},
}
"""What a field needs beside it to mean anything."""


def validator(name: str) -> jsonschema.Draft202012Validator:
    whole = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    return jsonschema.Draft202012Validator(whole)


def body_for(name: str, **fields: Any) -> dict[str, Any]:
    text = {"CompletionRequest": "prompt", "EmbeddingRequest": "input"}.get(name)
    start = {"messages": [{"role": "user", "content": "Hi"}]} if text is None else {text: "Hi"}
    return start | fields


CONSOLE = ("/", "/console/<path:name>")
"""A page and its files, and no API."""


def test_every_registered_route_is_described_and_nothing_else_is() -> None:
    registered = {
        (re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule), method.lower())
        for rule in make_app().app.url_map.iter_rules()
        if rule.rule not in CONSOLE
        for method in rule.methods - {"HEAD", "OPTIONS"}
    }
    assert {(operation.path, operation.method) for operation in OPERATIONS} == registered


async def test_below_a_path_prefix_the_document_and_the_page_say_so() -> None:
    app = make_app().app
    for path, text in (("/openapi.json", b'"servers":[{"url":"/llm"}]'), ("/docs", b"POST /llm/v1/completions")):
        exchange = Exchange(http_scope("GET", "/llm" + path, root_path="/llm"))
        await exchange.run(app)
        assert exchange.status == 200
        assert text in exchange.data
    assert "servers" not in (await make_app().get("/openapi.json")).json


def test_names_of_operations_are_unique() -> None:
    assert len({operation.name for operation in OPERATIONS}) == len(OPERATIONS)


def test_every_schema_has_a_name_that_generated_clients_can_have() -> None:
    assert all(name.isidentifier() for name in SCHEMAS)


def test_what_is_not_found_is_said_by_its_kind() -> None:
    def said(method: str, path: str) -> str:
        return str(DOCUMENT["paths"][path][method]["responses"]["404"]["description"])

    assert said("post", "/v1/chat/completions") == "No such model here."
    assert "previous response" in said("post", "/v1/responses")
    of_one = "/v1/responses/{response_id}"
    for method, path in (("get", ""), ("delete", ""), ("post", "/cancel"), ("get", "/input_items")):
        assert said(method, of_one + path).startswith("No such response here")


def test_every_schema_is_one_and_every_reference_leads_somewhere() -> None:
    for name in SCHEMAS:
        jsonschema.Draft202012Validator.check_schema(SCHEMAS[name])
    names = re.findall(r'"#/components/schemas/(\w+)"', json.dumps(DOCUMENT))
    assert set(names) <= set(SCHEMAS)


@pytest.mark.parametrize("keys", [(), ("k",)])
async def test_it_is_served_as_json_and_as_a_page_that_loads_nothing(keys: tuple[str, ...]) -> None:
    under_test = make_app(api_keys=keys)
    reply = await under_test.get("/openapi.json")
    assert reply.json == openapi_document("1.2.3", Limits(), has_keys=bool(keys))
    page = await under_test.get("/docs")
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    tags: list[str] = []
    parser = html.parser.HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.append(tag)  # type: ignore[method-assign]
    parser.feed(page.text)
    assert not {"script", "link", "img", "iframe"} & set(tags)
    assert all(operation.path in page.text for operation in OPERATIONS)
    assert html.escape('one of "asc", "desc"') in page.text


async def test_with_keys_what_is_not_said_to_be_public_needs_one() -> None:
    under_test = make_app(api_keys=("k",))
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            reply = await under_test.send(method.upper(), path.replace("{name}", "x"), b"{}")
            assert (reply.status_code == 401) == (operation.get("security") != []), (method, path)
            assert (reply.status_code == 401) == ("401" in operation["responses"]), (method, path)


async def test_the_priority_header_is_said_where_it_is_taken() -> None:
    said = {
        path: parameter["schema"]
        for path, methods in DOCUMENT["paths"].items()
        for operation in methods.values()
        for parameter in operation.get("parameters", [])
        if (parameter["name"], parameter["in"]) == ("X-Vllm-Priority", "header")
    }
    assert set(said) == {*PATHS.values(), "/v1/messages", "/v1/responses"}
    assert {(schema["minimum"], schema["maximum"]) for schema in said.values()} == {(-(2**31), 2**31 - 1)}
    assert "<code>X-Vllm-Priority</code>" in (await make_app().get("/docs")).text


def bounded_numbers() -> list[tuple[str, str, str, float]]:
    found = []
    for name in PATHS:
        for field, schema in SCHEMAS[name]["properties"].items():
            for kind in schema.get("anyOf", [schema]):
                found += [(name, field, keyword, kind[keyword]) for keyword in kind if "imum" in keyword.lower()]
    return found


@pytest.mark.parametrize(("name", "field", "keyword", "value"), bounded_numbers())
async def test_numbers_are_taken_up_to_the_bound_and_refused_beyond_it(
    name: str, field: str, keyword: str, value: float
) -> None:
    step = 1 if isinstance(value, int) else 1e-9
    beyond = value + step if keyword in ("maximum", "exclusiveMaximum") else value - step
    if keyword.startswith("exclusive"):
        value, beyond = value + 0.5, value
    needed = NEEDED.get(field, {}) | ({"n": value} if field == "best_of" else {})
    for given, status in ((value, 200), (beyond, 400)):
        reply = await make_app().post(PATHS[name], **body_for(name, **needed, **{field: given}))
        assert reply.status_code == status, (given, reply.text[:300])
        if status == 400:
            assert reply.json["error"]["param"] == field


@pytest.mark.parametrize("name", list(PATHS))
async def test_fields_that_have_to_be_given_are_those_that_the_document_names(name: str) -> None:
    whole = body_for(name)
    for field in SCHEMAS[name]["required"]:
        reply = await make_app().post(PATHS[name], **{key: value for key, value in whole.items() if key != field})
        assert reply.status_code == 400
        assert reply.json["error"]["param"] == field
    assert (await make_app().post(PATHS[name], **whole)).status_code == 200
    assert validator(name).is_valid(whole)


async def events(under_test: AppUnderTest, path: str, **body: Any) -> list[Any]:
    reply = await under_test.post(path, **body, stream=True)
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    *chunks, last = reply.text.strip().split("\n\n")
    assert last == "data: [DONE]"
    return [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]


RICH = [
    {},
    {"n": 2, "return_token_ids": True, "stop": "a"},
    {"prompt_logprobs": 2, "stream_options": None},
]


@pytest.mark.parametrize("more", RICH)
@pytest.mark.parametrize(
    ("name", "answer", "chunk"),
    [("CompletionRequest", "Completion", "Completion"), ("ChatRequest", "ChatCompletion", "ChatChunk")],
)
async def test_answers_and_chunks_have_the_shape_that_the_document_gives(
    name: str, answer: str, chunk: str, more: dict[str, Any]
) -> None:
    logprobs = {"logprobs": 2} if name == "CompletionRequest" else {"logprobs": True, "top_logprobs": 2}
    body = body_for(name, **logprobs, **more)
    validator(name).validate(body)
    validator(answer).validate((await make_app().post(PATHS[name], **body)).json)
    for told in await events(make_app(), PATHS[name], **body):
        validator(chunk).validate(told)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/completions", b"{", 400),
        ("POST", "/v1/completions", b'{"prompt": "a", "use_beam_search": true}', 501),
        ("POST", "/v1/completions", b'{"prompt": "a", "model": "b"}', 404),
        ("GET", "/v1/models/nobody", b"", 404),
    ],
)
async def test_refusals_have_a_documented_status_and_the_error_body(
    method: str, path: str, body: bytes, status: int
) -> None:
    reply = await make_app().send(method, path, body)
    described = DOCUMENT["paths"]["/v1/models/{name}" if "nobody" in path else path][method.lower()]
    assert reply.status_code == status
    assert str(status) in described["responses"]
    validator("ErrorBody").validate(reply.json)


@pytest.mark.parametrize(
    ("path", "answer", "body"),
    [
        ("/tokenize", "TokenizeAnswer", {"prompt": "Hi", "return_token_strs": True}),
        ("/tokenize", "TokenizeAnswer", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/embeddings", "EmbeddingList", {"input": ["Hi", "there"]}),
        ("/v1/embeddings", "EmbeddingList", {"input": [5, 6], "encoding_format": "base64"}),
        ("/detokenize", "DetokenizeAnswer", {"tokens": [5, 6]}),
        ("/v1/models", "ModelList", None),
        ("/v1/models/alias", "Model", None),
        ("/version", "VersionAnswer", None),
    ],
)
async def test_the_smaller_answers_have_their_shapes_too(path: str, answer: str, body: dict[str, Any] | None) -> None:
    under_test = make_app()
    reply = await (under_test.get(path) if body is None else under_test.post(path, **body))
    assert reply.status_code == 200
    validator(answer).validate(reply.json)
