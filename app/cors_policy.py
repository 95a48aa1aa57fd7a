"""What an operator says of web pages of other origins. Made once by app/settings.py; app/cors.py goes by it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from attrs import frozen

from protocol.errors import BadRequestError

Headers = list[tuple[bytes, bytes]]

ANY = "*"
EXPOSED = b"X-Request-Id, Retry-After"
"""What of an answer's headers a page's script may read, besides those that it always may."""

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#,]+")
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@frozen
class CorsPolicy:
    """Whose scripts may call. Raises BadRequestError for what no browser would follow."""

    origins: tuple[str, ...] = ()
    """As https://chat.example, or "*" for all. None: no page of another origin may, and nothing is told."""
    methods: tuple[str, ...] = (ANY,)
    headers: tuple[str, ...] = (ANY,)
    credentials: bool = False
    """Whether cookies and HTTP authentication of the browser may come along. A script's own key needs no leave."""

    def __attrs_post_init__(self) -> None:
        for origin in self.origins:
            if origin not in (ANY, "null") and not _ORIGIN.fullmatch(origin):
                raise BadRequestError(
                    f"--allowed-origins must be origins in lower case and without a path, as https://chat.example, "
                    f'or "*": {origin[:100]!r}'
                )
        for flag, names in (("--allowed-methods", self.methods), ("--allowed-headers", self.headers)):
            for name in names:
                if not _TOKEN.fullmatch(name.encode()):
                    raise BadRequestError(f"{flag} must be names: {name[:100]!r}")
        if self.credentials and ANY in self.origins:
            raise BadRequestError('--allow-credentials needs --allowed-origins by name, not "*"')

    def allows_origin(self, origin: bytes) -> bool:
        return ANY in self.origins or origin.decode("latin-1") in self.origins

    def allows_method(self, method: bytes) -> bool:
        known = ANY in self.methods or method.decode("latin-1") in self.methods
        return known and _TOKEN.fullmatch(method) is not None

    def forbidden_header(self, wanted: Iterable[bytes]) -> bytes | None:
        """The first that may not be sent."""
        allowed = {name.lower().encode() for name in self.headers}
        any_allowed = ANY in self.headers
        for name in wanted:
            if not _TOKEN.fullmatch(name) or not (any_allowed or name.lower() in allowed):
                return name
        return None

    def leave(self, origin: bytes) -> Headers:
        """What an answer to a page of an allowed origin says."""
        told = ANY.encode() if ANY in self.origins else origin
        headers = [(b"access-control-allow-origin", told), (b"access-control-expose-headers", EXPOSED)]
        if self.credentials:
            headers.append((b"access-control-allow-credentials", b"true"))
        return headers
