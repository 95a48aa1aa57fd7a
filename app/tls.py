"""The server's side of TLS: certificate, key and whose certificates clients must show. Used by app/listening.py."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NoReturn

from attrs import frozen

from protocol.errors import BadRequestError, StartError

HANDSHAKE_SECONDS = 10.0
"""How long a client may take to agree on keys. Nothing is known of it meanwhile."""


@frozen
class TlsFiles:
    """What the operator names. Raises BadRequestError for what cannot belong together."""

    certfile: Path
    """PEM: the certificate, and those between it and a root."""
    keyfile: Path | None = None
    """PEM, not encrypted. None: it is in `certfile`."""
    ca_certs: Path | None = None
    """PEM: who signs clients' certificates."""
    cert_reqs: int = 0
    """As in Python's ssl module: 0 asks clients for no certificate, 1 checks one that is shown, 2 needs one."""

    def __attrs_post_init__(self) -> None:
        if self.cert_reqs not in (0, 1, 2):
            raise BadRequestError(f"--ssl-cert-reqs must be 0 (none), 1 (optional) or 2 (required): {self.cert_reqs}")
        if self.cert_reqs and self.ca_certs is None:
            raise BadRequestError(
                f"--ssl-cert-reqs {self.cert_reqs} needs --ssl-ca-certs, which signs what clients show"
            )


def server_context(files: TlsFiles, *, http2: bool) -> ssl.SSLContext:
    """TLS 1.2 and 1.3 with Python's choice of ciphers. Raises StartError naming the file that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")  # what HTTP/2 allows of TLS 1.2's; 1.3 has its own
    context.set_alpn_protocols(["h2", "http/1.1"] if http2 else ["http/1.1"])
    _load_certificate(context, files)
    if files.ca_certs is not None:
        _load_authorities(context, files.ca_certs)
    context.verify_mode = ssl.VerifyMode(files.cert_reqs)
    return context


def _load_certificate(context: ssl.SSLContext, files: TlsFiles) -> None:
    keyfile = files.keyfile or files.certfile
    for flag, path in (("--ssl-certfile", files.certfile), ("--ssl-keyfile", keyfile)):
        _check_readable(flag, path)

    def no_password() -> NoReturn:  # else OpenSSL would ask on the terminal
        raise StartError(f"--ssl-keyfile {keyfile} is encrypted: nobody is there to type its password")

    try:
        context.load_cert_chain(files.certfile, keyfile, no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise StartError(f"--ssl-keyfile {keyfile} is not the key of --ssl-certfile {files.certfile}") from error
        if files.keyfile is None:
            raise StartError(
                f"--ssl-certfile {files.certfile} does not hold a certificate and its key in PEM; is the key in a file "
                f"of its own, for --ssl-keyfile? ({error})"
            ) from error
        raise StartError(
            f"--ssl-certfile {files.certfile} and --ssl-keyfile {keyfile} are no certificate and key in PEM: "
            f"{error.reason or error}"
        ) from error


def _load_authorities(context: ssl.SSLContext, path: Path) -> None:
    _check_readable("--ssl-ca-certs", path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise StartError(f"--ssl-ca-certs {path} has no certificate in PEM: {error.reason or error}") from error


def _check_readable(flag: str, path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise StartError(f"{flag} {path} cannot be read: {error.strerror}") from error
