"""Failures in the shape that Anthropic's clients read, and the paths on which they are told so.

Used by app/failures.py and app/auth.py for answers, and by app/routes/messages.py for streams.
"""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from app.schemas.messages_error import MessagesErrorBody, MessagesErrorDetail

PATH = "/v1/messages"
REQUEST_ID = "Request-Id"
"""The header in which Anthropic's clients look for a request's label."""

_ENCODER = msgspec.json.Encoder()
_TYPES: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_TIMEOUT: "timeout_error",
    HTTPStatus.CONFLICT: "conflict_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
    HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
}
"""What is not here is invalid_request_error below 500 and api_error from there on. Overload keeps the status 503 that
it has on every route: clients try again as they do after Anthropic's own 529."""


def is_messages_path(path: str) -> bool:
    """Whether the path, without the server's prefix, is one of the Messages API."""
    return path == PATH or path.startswith(PATH + "/")


def messages_error_body(status: int, message: str, request_id: str) -> bytes:
    """The JSON object {"type": "error", "error": {type, message}, "request_id"}."""
    default = "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "api_error"
    detail = MessagesErrorDetail(_TYPES.get(status, default), message)
    return _ENCODER.encode(MessagesErrorBody(error=detail, request_id=request_id))
