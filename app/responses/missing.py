"""Ids of responses that are not there: refused in few words, and before a disk is asked where they can be none of ours.

Used by app/responses/store.py and app/routes/stored_responses.py.
"""

from __future__ import annotations

from protocol.errors import NotFoundError

MAX_ID_LENGTH = 128
"""Characters."""


def is_id(response_id: str) -> bool:
    """Whether it could be one of ours, before a disk is asked."""
    return response_id.startswith("resp_") and len(response_id) <= MAX_ID_LENGTH


def check_id(response_id: str) -> None:
    """Raises NotFoundError."""
    if not is_id(response_id):
        raise not_found(response_id)


def not_found(response_id: str) -> NotFoundError:
    return NotFoundError(f"Response with id {response_id[:MAX_ID_LENGTH]!r} not found", param="response_id")


def previous_not_found(missing: str, asked: str) -> NotFoundError:
    """`missing` is the one that was asked for, or one before it."""
    known = "" if missing == asked else f", which {asked!r} goes on from"
    return NotFoundError(
        f"Previous response with id {missing[:MAX_ID_LENGTH]!r} not found{known}: it was never stored here, was "
        "deleted, or is too old",
        param="previous_response_id",
        code="previous_response_not_found",
    )
