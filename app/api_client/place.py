"""Where a server is that a command asks, and with which key. Pure; used by app/api_client and the commands."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from attrs import frozen

from protocol.errors import BadRequestError
from protocol.net_address import is_name

PORTS = {"http": 80, "https": 443}
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""A server that listens on all addresses is asked on this machine's own."""
OWN_KEYS = ("TRILLM_API_KEY", "VLLM_API_KEY", "OPENAI_API_KEY")
MOST_URL = 2048


@frozen
class Place:
    scheme: str
    host: str
    """A name or an address, without brackets."""
    port: int
    prefix: str = ""
    """Of every path, as /llm; without /v1."""
    uds: Path | None = None
    """A Unix socket instead of host and port."""
    key: str | None = None
    ca_certs: Path | None = None
    """Who signs the server's certificate, in PEM. None: whom this machine trusts."""
    is_insecure: bool = False
    """Whoever signed it."""

    @property
    def authority(self) -> str:
        """As a Host header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        """For people; without the key."""
        return f"unix:{self.uds}" if self.uds is not None else f"{self.scheme}://{self.authority}{self.prefix}"


def find_place(
    *,
    base_url: str | None = None,
    host: str | None = None,
    port: int | None = None,
    uds: Path | None = None,
    key: str | None = None,
    ca_certs: Path | None = None,
    is_insecure: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> Place:
    """Where flags say; else where OPENAI_BASE_URL says; else where TRILLM_UDS, TRILLM_HOST and TRILLM_PORT would have
    a server listen; else http://127.0.0.1:8000.

    A place out of OPENAI_BASE_URL gets OPENAI_API_KEY and no other key out of the environment: what is in
    TRILLM_API_KEY is for one's own servers. Raises BadRequestError for what is no place.
    """
    if base_url is not None and (host is not None or port is not None or uds is not None):
        raise BadRequestError("--base-url says where the server is already: leave --host, --port and --uds out")
    if uds is not None and (host is not None or port is not None):
        raise BadRequestError("--uds says where the server is already: leave --host and --port out")
    keys: tuple[str, ...] = OWN_KEYS
    if base_url is not None:
        place = read_url("--base-url", base_url)
    elif host is not None or port is not None or uds is not None:
        place = _made_of("--host", host, port, uds)
    elif given := environment.get("OPENAI_BASE_URL"):
        place, keys = read_url("OPENAI_BASE_URL", given), ("OPENAI_API_KEY",)
    else:
        socket = environment.get("TRILLM_UDS")
        number = _number(environment.get("TRILLM_PORT"))
        place = _made_of("TRILLM_HOST", environment.get("TRILLM_HOST"), number, Path(socket) if socket else None)
    found = key or next((key for name in keys if (key := _first_key(environment.get(name)))), None)
    if found is not None and not (found.isascii() and found.isprintable()):
        raise BadRequestError("the API key has characters that no header can have: only printable ASCII can be sent")
    return Place(place.scheme, place.host, place.port, place.prefix, place.uds, found, ca_certs, is_insecure)


def read_url(name: str, text: str) -> Place:
    """Of a URL with or without /v1; without http:// it is meant. Raises BadRequestError that names what was given."""
    shown = text[:200]
    if len(text) > MOST_URL or not text.isascii() or not text.isprintable() or " " in text:
        raise BadRequestError(f"{name} must be a URL as http://127.0.0.1:8000, and {shown!r} is none")
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port
    except ValueError as error:
        raise BadRequestError(f"{name} {shown!r} is no URL: {error}") from error
    host = parts.hostname or ""
    if parts.scheme not in PORTS or not is_name(host) or port == 0:
        raise BadRequestError(f"{name} must be a URL as http://127.0.0.1:8000, and {shown!r} is none")
    if parts.username is not None or parts.query or parts.fragment:
        raise BadRequestError(f"{name} may have no user, no query and no fragment: keys are for --api-key")
    prefix = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return Place(parts.scheme, host, PORTS[parts.scheme] if port is None else port, prefix)


def _made_of(name: str, host: str | None, port: int | None, uds: Path | None) -> Place:
    host = (host or DEFAULT_HOST).removeprefix("[").removesuffix("]")
    port = DEFAULT_PORT if port is None else port
    if not is_name(host):
        raise BadRequestError(f"{name} must be a host's name or address, and {host[:200]!r} is none")
    if not 0 < port < 65536:
        raise BadRequestError(f"the server's port must be from 1 to 65535, not {port}")
    return Place("http", ANY_ADDRESS.get(host, host), port, uds=uds)


def _number(text: str | None) -> int | None:
    """A port that TRILLM_PORT names; what is none, `trillm serve` refuses, and we look where it would be without."""
    return int(text) if text and text.isdecimal() and 0 < int(text[:6]) < 65536 else None


def _first_key(text: str | None) -> str | None:
    """Of one key or a JSON list of keys, as a server takes it."""
    if text and text.lstrip().startswith("["):
        try:
            return next(iter(msgspec.json.decode(text, type=list[str])), None)
        except msgspec.DecodeError:
            return text
    return text or None
