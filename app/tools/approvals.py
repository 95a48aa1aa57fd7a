"""Calls that a client was asked about and has now allowed: each is made once. Used by app/tools/box.py."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol, final

from app.schemas.responses import InputItem
from protocol.errors import BadRequestError

OURS = re.compile(r"mcpr_[0-9a-f]{32}")
"""Ids that this server has given, which are nobody else's. Others are the client's own, and may come again."""
MAX_REMEMBERED = 65536


def allowed_calls(items: Sequence[InputItem]) -> list[InputItem]:
    """Of a conversation, the oldest item first: the approval requests that were answered with yes, and whose calls have
    not been made.

    Raises BadRequestError for an answer to what was not asked before it, and for a second answer.
    """
    asked: dict[str, InputItem] = {}
    answers: dict[str, bool] = {}
    made: set[str] = set()
    for item in items:
        match item.type:
            case "mcp_approval_request":
                asked[item.id or ""] = item
            case "mcp_approval_response":
                key = item.approval_request_id or ""
                if key not in asked:
                    raise BadRequestError(
                        f"input has an mcp_approval_response to {key[:80]!r}, which was not asked before it: send "
                        "previous_response_id, or the mcp_approval_request along",
                        param="input",
                    )
                if key in answers:
                    raise BadRequestError(f"the mcp_approval_request {key[:80]!r} is answered twice", param="input")
                answers[key] = bool(item.approve)
            case "mcp_call":
                made.add(item.approval_request_id or "")
    return [asked[key] for key, approved in answers.items() if approved and key not in made]


class UsedApprovals(Protocol):
    """Which approvals have been used, also in other answers to the same response. The store of responses knows it for
    all servers that share it, and after restarts."""

    async def use_approval(self, approval_request_id: str) -> bool:
        """Whether nobody has before: one of all who ask may make the call. Raises UnavailableError."""
        ...


@final
class ApprovalsInMemory:
    """Of one server without a store."""

    def __init__(self) -> None:
        self._used: dict[str, None] = {}

    async def use_approval(self, approval_request_id: str) -> bool:
        if approval_request_id in self._used:
            return False
        if len(self._used) >= MAX_REMEMBERED:
            del self._used[next(iter(self._used))]
        self._used[approval_request_id] = None
        return True


async def may_be_made(approval_request_id: str, used: UsedApprovals) -> bool:
    """Once, if this server or one that shares its store has asked for the approval. Raises UnavailableError."""
    return OURS.fullmatch(approval_request_id) is None or await used.use_approval(approval_request_id)
