"""What a request's headers say of how it is served. Used by the routes that run a model, after the body is read."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec
from quart import g, request

from app.access_log import access_of
from app.checks import short
from app.request_label import HEADER, request_label
from app.schemas.sampling import SamplingFields
from protocol.errors import BadRequestError

PRIORITY_HEADER = "X-Vllm-Priority"

F = TypeVar("F", bound=SamplingFields)


def with_headers(body: F) -> F:
    """The body with the priority that the header gives, which goes before its own. Raises BadRequestError.

    A request without an X-Request-Id is labelled by the body's request_id from here on, in the answer and in the logs.
    """
    if body.request_id and HEADER not in request.headers:
        g.request_id = access_of(request).label = request_label(body.request_id)
    priority = asked_priority(body.priority)
    return body if priority == body.priority else msgspec.structs.replace(body, priority=priority)


def asked_priority(own: int | None) -> int | None:
    """What the header gives, or else the body's `own`. Raises BadRequestError for what is no number; its range is the
    body's, too."""
    given = request.headers.get(PRIORITY_HEADER)
    if given is None:
        return own
    if not re.fullmatch(r"[+-]?[0-9]{1,10}", given.strip()):
        raise BadRequestError(f"{PRIORITY_HEADER} must be a whole number, not {short(given)}", param="priority")
    return int(given)
