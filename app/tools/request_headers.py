"""Headers that a request sends along to a server of tools: bounded, and none that is the transport's own."""

from __future__ import annotations

import re
from collections.abc import Mapping

from protocol.errors import BadRequestError

MAX_HEADERS = 32
MAX_VALUE_LENGTH = 8192
MAX_TOTAL_LENGTH = 16384
NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
VALUE = re.compile(r"[\t -~]*")
OURS = {
    "accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect", "host",
    "keep-alive", "last-event-id", "mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id",
    "proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
}  # fmt: skip
"""What the transport says itself."""

Headers = tuple[tuple[str, str], ...]
"""Names in lower case, sorted: the same headers are the same session."""


def request_headers(headers: Mapping[str, str], authorization: str | None = None) -> Headers:
    """`authorization`: an access token, told as a bearer's. Raises BadRequestError, which never tells a value."""
    if len(headers) > MAX_HEADERS:
        raise BadRequestError(f"headers has {len(headers)} entries; at most {MAX_HEADERS} are taken")
    checked: dict[str, str] = {}
    for name, value in headers.items():
        key = name.lower()
        if not NAME.fullmatch(name) or key in OURS:
            raise BadRequestError(f"headers may not have {name[:64]!r}")
        if key in checked:
            raise BadRequestError(f"headers has {name!r} twice")
        checked[key] = _value(name, value)
    if authorization is not None:
        if "authorization" in checked:
            raise BadRequestError("authorization and the header Authorization are both given; one is taken")
        checked["authorization"] = f"Bearer {_value('authorization', authorization)}"
    total = sum(len(name) + len(value) for name, value in checked.items())
    if total > MAX_TOTAL_LENGTH:
        raise BadRequestError(f"headers has {total} characters; at most {MAX_TOTAL_LENGTH} are taken")
    return tuple(sorted(checked.items()))


def _value(name: str, value: str) -> str:
    if len(value) > MAX_VALUE_LENGTH:
        raise BadRequestError(f"the header {name} has {len(value)} characters; at most {MAX_VALUE_LENGTH} are taken")
    if not VALUE.fullmatch(value):
        raise BadRequestError(f"the header {name} has characters that no header may have")
    return value.strip()
