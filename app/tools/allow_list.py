"""Which servers of tools a request may name by `server_url`: those that the operator allows, and no others.

A client that chose any address would have this machine call into its own network. Used where requests are checked.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from attrs import frozen

from app.tools.address import ToolAddress, read_url
from protocol.errors import BadRequestError

MAX_ALLOWED = 256


@frozen
class AllowedServers:
    """--allowed-mcp-servers: URLs; what lies at one of them or below its path is allowed, on that very origin."""

    prefixes: tuple[tuple[str, str, int, str], ...] = ()
    """Scheme, host, port and path without a slash at its end, each."""

    @classmethod
    def of(cls, texts: tuple[str, ...]) -> AllowedServers:
        """Raises BadRequestError."""
        urls = [url.strip() for text in texts for url in text.split(",") if url.strip()]
        if len(urls) > MAX_ALLOWED:
            raise BadRequestError(f"--allowed-mcp-servers has {len(urls)} URLs; at most {MAX_ALLOWED} are taken")
        try:
            return cls(tuple(_origin_and_path(read_url(url).url) for url in urls))
        except BadRequestError as error:
            raise BadRequestError(f"--allowed-mcp-servers: {error.message}") from error

    def address(self, url: str) -> ToolAddress:
        """Of a request's `server_url`. Raises BadRequestError for one that is not allowed."""
        address = read_url(url)
        *origin, path = _origin_and_path(address.url)
        for *allowed_origin, prefix in self.prefixes:
            if origin == allowed_origin and (path == prefix or path.startswith(f"{prefix}/")):
                return address
        raise BadRequestError(f"the server {address} is not one that this server may call (--allowed-mcp-servers)")


def _origin_and_path(url: str) -> tuple[str, str, int, str]:
    parts = urlsplit(url)
    port = (443 if parts.scheme == "https" else 80) if parts.port is None else parts.port
    return parts.scheme, parts.hostname or "", port, parts.path.rstrip("/")
