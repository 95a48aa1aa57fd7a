"""Where a server behind the proxy is. Read by app/proxy/settings.py."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from attrs import frozen

from protocol.errors import BadRequestError
from protocol.net_address import is_name

PORTS = {"http": 80, "https": 443}


@frozen
class UpstreamAddress:
    scheme: str
    host: str
    """A name or an address, without brackets."""
    port: int
    prefix: str = ""
    """Of every path, as /llm."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.prefix}"

    @property
    def authority(self) -> str:
        """As a Host header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


def read_address(flag: str, text: str) -> UpstreamAddress:
    """Raises BadRequestError for what is no http(s)://host[:port][/prefix]."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise BadRequestError(f"{flag} {text!r} is no URL: {error}") from error
    host = parts.hostname or ""
    is_place = is_name(host) and port != 0
    if parts.scheme not in PORTS or not is_place or not text.isascii() or not text.isprintable():
        raise BadRequestError(f"{flag} must be URLs as http://10.0.0.1:8000, and {shown(parts)!r} is none")
    if parts.username is not None or parts.query or parts.fragment or " " in text:
        raise BadRequestError(
            f"{flag} {shown(parts)!r} may have no user, no query and no fragment: keys are for --upstream-api-key"
        )
    path = parts.path.rstrip("/").removesuffix("/v1")
    return UpstreamAddress(parts.scheme, host, PORTS[parts.scheme] if port is None else port, path)


def shown(parts: SplitResult) -> str:
    """Without a password."""
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()[:200]
