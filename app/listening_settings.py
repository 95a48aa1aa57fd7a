"""What an operator says of where connections come in and who may come, for whatever serves HTTP here.

app/settings.py and app/proxy/settings.py fulfil it and are checked by it; app/listening.py goes by it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol

from app.tls import TlsFiles
from app.unix_socket import check_socket_path
from protocol.errors import BadRequestError

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class ListeningSettings(Protocol):
    """Read-only, with the flags' names."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def uds(self) -> Path | None: ...
    @property
    def ssl_certfile(self) -> Path | None: ...
    @property
    def ssl_keyfile(self) -> Path | None: ...
    @property
    def ssl_ca_certs(self) -> Path | None: ...
    @property
    def ssl_cert_reqs(self) -> int: ...
    @property
    def api_key(self) -> tuple[str, ...]: ...
    @property
    def http2(self) -> bool: ...
    @property
    def root_path(self) -> str: ...
    @property
    def shutdown_timeout(self) -> float: ...


def check_listening_settings(settings: ListeningSettings) -> None:
    """Raises BadRequestError for what cannot be listened on, or would let in everybody."""
    if any(not key for key in settings.api_key):
        raise BadRequestError("--api-key is empty: leave it out to serve without a key")
    if settings.uds is None and settings.host not in LOOPBACK and not settings.api_key:
        raise BadRequestError(
            f"--host {settings.host} can be reached from other machines and there is no --api-key: "
            "give one (or VLLM_API_KEY in the environment), or listen on 127.0.0.1"
        )
    if settings.root_path and not re.fullmatch(r"(/[^/?#\s]+)+", settings.root_path):
        raise BadRequestError(
            f"--root-path must begin with a slash and not end with one, as /llm: {settings.root_path!r}"
        )
    if not 0 <= settings.port <= 65535:
        raise BadRequestError(f"--port must be from 0 to 65535, not {settings.port}")
    if settings.uds is not None:
        check_socket_path(settings.uds)
    tls_files(settings)


def tls_files(settings: ListeningSettings) -> TlsFiles | None:
    """None: connections are not encrypted. Raises BadRequestError for what cannot belong together."""
    if settings.ssl_certfile is not None:
        return TlsFiles(settings.ssl_certfile, settings.ssl_keyfile, settings.ssl_ca_certs, settings.ssl_cert_reqs)
    if settings.ssl_keyfile or settings.ssl_ca_certs or settings.ssl_cert_reqs:
        raise BadRequestError("--ssl-keyfile, --ssl-ca-certs and --ssl-cert-reqs need an --ssl-certfile")
    return None
