"""Which servers of tools a request may name by `server_url`: those that the operator allows, and no others.

A client that chose any address would have this machine call into its own network. Used where requests are checked.
"""

from __future__ import annotations

from attrs import evolve, frozen

from app.tools.address import ToolAddress, UrlPrefix, read_url
from protocol.errors import BadRequestError

MAX_ALLOWED = 256


@frozen
class AllowedServers:
    """--allowed-mcp-servers: URLs; what lies at one of them or below its path is allowed, on that very origin."""

    prefixes: tuple[UrlPrefix, ...] = ()

    @classmethod
    def of(cls, texts: tuple[str, ...]) -> AllowedServers:
        """Raises BadRequestError."""
        urls = [url.strip() for text in texts for url in text.split(",") if url.strip()]
        if len(urls) > MAX_ALLOWED:
            raise BadRequestError(f"--allowed-mcp-servers has {len(urls)} URLs; at most {MAX_ALLOWED} are taken")
        try:
            return cls(tuple(UrlPrefix.of(read_url(url).url) for url in urls))
        except BadRequestError as error:
            raise BadRequestError(f"--allowed-mcp-servers: {error.message}") from error

    def address(self, url: str) -> ToolAddress:
        """Of a request's `server_url`; its server cannot lead anywhere else than to what is allowed, either. Raises
        BadRequestError for one that is not allowed."""
        address = read_url(url)
        asked = UrlPrefix.of(address.url)
        if any(prefix.covers(asked) for prefix in self.prefixes):
            return evolve(address, within=tuple(each for each in self.prefixes if each.origin == asked.origin))
        raise BadRequestError(f"the server {address} is not one that this server may call (--allowed-mcp-servers)")
