"""Exceptions to the error body of the OpenAI API, or of Anthropic's on its paths: the one place that decides what a
client may read of a failure.

Used by the app's error handlers for answers, and by app/stream.py for error frames after the headers are out.
"""

from __future__ import annotations

import logging
from http import HTTPStatus

import msgspec
from quart import Quart, Response, g, request
from werkzeug.exceptions import HTTPException

from app.messages_error import is_messages_path, messages_error_body
from app.schemas.error import ErrorBody, ErrorDetail
from protocol.errors import (
    BadRequestError,
    MethodNotAllowedError,
    NotFoundError,
    PayloadTooLargeError,
    RequestFailedError,
    RequestTimeoutError,
    TrillmError,
    UnsupportedMediaTypeError,
)

log = logging.getLogger("trillm.http")

_MESSAGE_LIMIT = 800
"""Characters of a message that are told: an error never echoes a big input."""
_ENCODER = msgspec.json.Encoder()


def failure_of(error: BaseException, request_id: str) -> TrillmError:
    """What a client is told of an error. What was not raised on purpose is logged here and told without details."""
    if isinstance(error, TrillmError):
        if error.status == HTTPStatus.INTERNAL_SERVER_ERROR:  # not 503: overload must not flood the log as well
            log.warning("request %s: %s: %s", request_id, type(error).__name__, error.message)
        return error
    if isinstance(error, HTTPException):
        return _from_http(error)
    if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        return failure_of(error.exceptions[0], request_id)
    log.error("request %s failed", request_id, exc_info=error)
    return RequestFailedError(f"Internal error; the server's log has it under request {request_id}", code="internal")


def _from_http(error: HTTPException) -> TrillmError:
    message = error.description or error.name
    match error.code:
        case 404:
            return NotFoundError("There is no such route here")
        case 405:
            return MethodNotAllowedError("This route does not answer to this method")
        case 408:
            return RequestTimeoutError("The request's body did not arrive in time")
        case 413:
            return PayloadTooLargeError("The request's body is larger than this server takes")
        case 415:
            return UnsupportedMediaTypeError(message)
    found = BadRequestError(message) if error.code is not None and error.code < 500 else RequestFailedError(message)
    found.status = error.code or HTTPStatus.INTERNAL_SERVER_ERROR
    return found


def error_body(error: TrillmError) -> bytes:
    """The JSON object {"error": {message, type, param, code}}, well below a kilobyte."""
    return _ENCODER.encode(ErrorBody(ErrorDetail(told(error), error.type, _short(error.param), error.code)))


def error_body_at(path: str, error: TrillmError, request_id: str) -> bytes:
    """In the shape that the clients of this path read; `path` is without the server's prefix."""
    if is_messages_path(path):
        return messages_error_body(error.status, told(error), request_id)
    return error_body(error)


def told(error: TrillmError) -> str:
    """The message as it may be told."""
    message = error.message
    return message if len(message) <= _MESSAGE_LIMIT else message[:_MESSAGE_LIMIT] + " …"


def _short(param: str | None) -> str | None:
    return param if param is None or len(param) <= 100 else param[:100] + "…"


def error_response(error: TrillmError) -> Response:
    """For the request that is being answered."""
    body = error_body_at(request.path, error, g.get("request_id", "-"))
    response = Response(body, status=error.status, content_type="application/json")
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(max(1, round(error.retry_after)))
    if error.is_worth_retrying is not None:
        response.headers["X-Should-Retry"] = str(error.is_worth_retrying).lower()
    return response


def register_failures(app: Quart) -> None:
    """Every error that a route raises, and the framework's own, becomes JSON."""

    async def answer(error: Exception) -> Response:
        response = error_response(failure_of(error, g.get("request_id", "-")))
        if isinstance(error, HTTPException):
            for name, value in error.get_headers():
                if name.lower() == "allow":
                    response.headers[name] = value
        return response

    app.register_error_handler(HTTPException, answer)
    app.register_error_handler(Exception, answer)
