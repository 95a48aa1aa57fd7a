"""The OpenAPI 3.1 document of the HTTP API, from app/operations.py and the structs of app/schemas. Served by
app/routes/docs.py; app/docs_page.py makes a page of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import msgspec

from app.field_bounds import Bounds, field_bounds
from app.limits import Limits
from app.operations import EVENT_STREAM, JSON, OPERATIONS, Operation, Struct

Json = dict[str, Any]

_TEMPLATE = "#/components/schemas/{name}"
_KEY_SCHEME = "key"
_BARE_KEY_SCHEME = "bareKey"
_EVERYWHERE = (HTTPStatus.FORBIDDEN, HTTPStatus.INTERNAL_SERVER_ERROR)
"""403 only without keys: then loopback addresses alone are served."""
_REQUEST_ID: Json = {
    "X-Request-Id": {
        "description": "The request's own label, or one that was made for it.",
        "schema": {"type": "string"},
    }
}
_MEANINGS = {
    HTTPStatus.BAD_REQUEST: "The caller's mistake; the message names field, limit and value.",
    HTTPStatus.UNAUTHORIZED: "No key, or a wrong one.",
    HTTPStatus.FORBIDDEN: "Without keys, only loopback addresses and this machine's own names are served.",
    HTTPStatus.REQUEST_TIMEOUT: "The body did not arrive in time.",
    HTTPStatus.CONFLICT: "The engine is in no state for this.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is larger than this server takes.",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "The body is not said to be JSON.",
    HTTPStatus.INTERNAL_SERVER_ERROR: "This request failed in the server, and no other one.",
    HTTPStatus.NOT_IMPLEMENTED: "Well-formed, and not done here.",
    HTTPStatus.SERVICE_UNAVAILABLE: "Not now: starting, draining, restarting, or too many requests. Nothing was run.",
    HTTPStatus.GATEWAY_TIMEOUT: "Not done within its time.",
}


def openapi_document(version: str, limits: Limits, *, has_keys: bool) -> Json:
    """The whole document as plain data. With keys, every operation but the public ones names the key's scheme."""
    document: Json = {
        "openapi": "3.1.0",
        "info": {
            "title": "trillm",
            "version": version,
            "summary": "Large language models over the OpenAI HTTP API.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": _paths(OPERATIONS, has_keys),
        "components": {"schemas": _schemas(OPERATIONS, field_bounds(limits))},
    }
    if has_keys:
        document["components"]["securitySchemes"] = {
            _KEY_SCHEME: {"type": "http", "scheme": "bearer"},
            _BARE_KEY_SCHEME: {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
        }
        document["security"] = [{_KEY_SCHEME: []}]
    return document


# ---------------------------------------------------------------------- paths


def _paths(operations: Iterable[Operation], has_keys: bool) -> Json:
    paths: Json = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, has_keys)
    return paths


def _operation(operation: Operation, has_keys: bool) -> Json:
    found: Json = {"operationId": operation.name, "summary": operation.summary}
    if parameters := _parameters(operation):
        found["parameters"] = parameters
    if operation.body is not None:
        found["requestBody"] = {"required": True, "content": {JSON: {"schema": _reference(operation.body)}}}
    statuses = {*operation.errors, *_EVERYWHERE}
    if has_keys and not operation.is_public:
        statuses = {*statuses, HTTPStatus.UNAUTHORIZED} - {HTTPStatus.FORBIDDEN}
    elif has_keys:
        found["security"] = []
        statuses -= {HTTPStatus.FORBIDDEN}
    if has_keys and operation.is_of_anthropic:
        found["security"] = [{_KEY_SCHEME: []}, {_BARE_KEY_SCHEME: []}]
    responses = {str(status.value): _refusal(status, operation) for status in sorted(statuses)}
    found["responses"] = {"200": _success(operation)} | responses
    return found


def _parameters(operation: Operation) -> list[Json]:
    in_path = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    return [
        *({"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in in_path),
        *(
            {"name": each.name, "in": "query", "description": each.description, "schema": each.schema}
            for each in operation.query
        ),
        *(
            {"name": each.name, "in": "header", "description": each.description, "schema": each.schema}
            for each in operation.headers
        ),
    ]


def _success(operation: Operation) -> Json:
    content: Json = {}
    if operation.answer is not None:
        content[JSON] = {"schema": _reference(operation.answer)}
    elif operation.media_type == JSON:
        content[JSON] = {"schema": {"type": "object"}}
    elif operation.media_type is not None:
        content[operation.media_type] = {"schema": {"type": "string"}}
    if operation.streamed is not None:
        content[EVENT_STREAM] = {"schema": {"type": "string", "description": _events(operation.streamed)}}
    if operation.events:
        content[EVENT_STREAM] = {"schema": {"type": "string", "description": _named_events(operation)}}
    return {"description": "Done."} | ({"content": content} if content else {}) | {"headers": _REQUEST_ID}


def _events(chunk: Struct) -> str:
    name = chunk.__name__
    return (
        f"With `stream`: server-sent events, each of them `data: ` and a {name} (#/components/schemas/{name}) as JSON; "
        "an answer that fails after its headers are out has an ErrorBody instead. The last is always `data: [DONE]`."
    )


def _named_events(operation: Operation) -> str:
    names = ", ".join(f"{event.__name__} (#/components/schemas/{event.__name__})" for event in operation.events)
    failure = "an event `error` that holds a MessagesErrorBody" if operation.is_of_anthropic else "`response.failed`"
    return (
        f"With `stream`: server-sent events, each of them `event: ` and its type, `data: ` and one of these as JSON: "
        f"{names}. An answer that fails after its headers are out ends with {failure}."
    )


def _refusal(status: HTTPStatus, operation: Operation) -> Json:
    headers: Json = dict(_REQUEST_ID)
    if status is HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = {"schema": {"const": "Bearer"}}
    if status is HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}
    return {
        "description": operation.not_found if status is HTTPStatus.NOT_FOUND else _MEANINGS[status],
        "headers": headers,
        "content": {JSON: {"schema": _reference(operation.refusal)}},
    }


def _reference(struct: Struct) -> Json:
    return {"$ref": _TEMPLATE.format(name=struct.__name__)}


# ---------------------------------------------------------------------- schemas


def _schemas(operations: Iterable[Operation], bounds: dict[str, Bounds]) -> Json:
    """Of every struct that is read or written, by its name."""
    told = [kind for op in operations for kind in (op.answer, op.streamed, *op.events, op.refusal)]
    read = [op.body for op in operations]
    structs = [struct for struct in dict.fromkeys([*read, *told]) if struct is not None]
    _, schemas = msgspec.json.schema_components(structs, ref_template=_TEMPLATE)
    for struct in told:
        if struct is not None:
            schemas[struct.__name__]["required"] = _always_told(struct)
    for name, fields in bounds.items():
        for field, keywords in fields.items():
            schema = schemas[name]["properties"][field]
            for kind in schema.get("anyOf", [schema]):
                kind.update(keywords.get(kind.get("type", ""), {}))
    schemas["CompletionRequest"]["required"] = ["prompt"]
    _leave_null_out(schemas["CompletionRequest"]["properties"]["prompt"])
    return schemas


def _always_told(struct: Struct) -> list[str]:
    """Fields that are in every answer: an answer leaves out only what is unset."""
    tag = struct.__struct_config__.tag_field
    fields = [field.encode_name for field in msgspec.structs.fields(struct) if field.default is not msgspec.UNSET]
    return [tag, *fields] if tag is not None else fields


def _leave_null_out(schema: Json) -> None:
    """Of a field that has to be given, though the struct has a default for it."""
    schema["anyOf"] = [kind for kind in schema["anyOf"] if kind.get("type") != "null"]
    del schema["default"]
