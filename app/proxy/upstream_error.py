"""What can go wrong between the proxy and a server behind it."""

from __future__ import annotations

from typing import Literal

from protocol.errors import TrillmError

Kind = Literal["unreachable", "broken", "late"]

_STATUS = {"unreachable": 503, "broken": 502, "late": 504}
_TOLD = {
    "unreachable": "No {role} server can be reached",
    "broken": "The {role} server has broken off before its answer was over",
    "late": "The {role} server has said nothing for too long",
}


class UpstreamError(TrillmError):
    """There is no answer, or no more of it. The client is told of what kind it is; address and details are for the
    log."""

    type = "upstream_error"

    def __init__(self, kind: Kind, role: str, detail: str) -> None:
        super().__init__(_TOLD[kind].format(role=role), code=f"upstream_{kind}")
        self.kind = kind
        self.detail = detail
        self.status = _STATUS[kind]
        self.retry_after = 1.0 if kind == "unreachable" else None

    @property
    def is_unsent(self) -> bool:
        """The server has not had the request, so that another one may have it whatever it is for."""
        return self.kind == "unreachable"
