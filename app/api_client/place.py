"""Where a server is that a command asks, and with which key. Pure; used by app/api_client and the commands."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from attrs import evolve, frozen

from protocol.errors import BadRequestError
from protocol.net_address import is_local, is_name

PORTS = {"http": 80, "https": 443}
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""A server that listens on all addresses is asked on this machine's own."""
OWN_KEYS = ("TRILLM_API_KEY", "VLLM_API_KEY")
"""Variables with the keys that servers of this machine ask for. They are not for others to see."""
CLIENT_KEY = "OPENAI_API_KEY"
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
    key_from: str = "--api-key"
    """The flag or variable that gave it."""
    takes_own_keys: bool = True
    """It is a server of one's own, as far as can be known: OWN_KEYS are for it."""
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

    Keys out of the environment: OPENAI_API_KEY is for any place; TRILLM_API_KEY and VLLM_API_KEY, which are those of
    one's own servers, go before it, but to no other machine that flags name, and to no place out of OPENAI_BASE_URL.
    Raises BadRequestError for what is no place.
    """
    if base_url is not None and (host is not None or port is not None or uds is not None):
        raise BadRequestError("--base-url says where the server is already: leave --host, --port and --uds out")
    if uds is not None and (host is not None or port is not None):
        raise BadRequestError("--uds says where the server is already: leave --host and --port out")
    if base_url is not None:
        place = read_url("--base-url", base_url)
    elif host is not None or port is not None or uds is not None:
        place = _made_of("--host", host, port, uds)
    elif given := environment.get("OPENAI_BASE_URL"):
        place = evolve(read_url("OPENAI_BASE_URL", given), takes_own_keys=False)
    else:
        socket = environment.get("TRILLM_UDS")
        number = _number(environment.get("TRILLM_PORT"))
        place = _made_of("TRILLM_HOST", environment.get("TRILLM_HOST"), number, Path(socket) if socket else None)
        place = evolve(place, takes_own_keys=True)
    place = evolve(place, ca_certs=ca_certs, is_insecure=is_insecure)
    return _with_key(place, key, environment)


def _with_key(place: Place, key: str | None, environment: Mapping[str, str]) -> Place:
    """The flag's, or else the first of the environment that is for this place. Raises BadRequestError."""
    given = [("--api-key", key)]
    given += [(name, _first_key(environment.get(name))) for name in key_variables(place)]
    for name, found in given:
        if not found:
            continue
        if not (found.isascii() and found.isprintable()):
            raise BadRequestError(
                f"the key of {name} has characters that no header can have: only printable ASCII can be sent"
            )
        return evolve(place, key=found, key_from=name)
    return place


def key_variables(place: Place) -> tuple[str, ...]:
    """Those that a key for it may be in, the first one first."""
    return (*OWN_KEYS, CLIENT_KEY) if place.takes_own_keys else (CLIENT_KEY,)


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
    port = PORTS[parts.scheme] if port is None else port
    return Place(parts.scheme, host, port, prefix, takes_own_keys=is_local(host))


def _made_of(name: str, host: str | None, port: int | None, uds: Path | None) -> Place:
    host = (host or DEFAULT_HOST).removeprefix("[").removesuffix("]")
    port = DEFAULT_PORT if port is None else port
    if not is_name(host):
        raise BadRequestError(f"{name} must be a host's name or address, and {host[:200]!r} is none")
    if not 0 < port < 65536:
        raise BadRequestError(f"the server's port must be from 1 to 65535, not {port}")
    host = ANY_ADDRESS.get(host, host)
    return Place("http", host, port, uds=uds, takes_own_keys=uds is not None or is_local(host.lower()))


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
