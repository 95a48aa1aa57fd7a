"""Certificates that are made for a test: an authority, the server's own and a client's."""

from __future__ import annotations

import ssl
from pathlib import Path

import attrs
import trustme


@attrs.frozen
class Certificates:
    """`directory` has ca.pem, server.pem (certificate), server.key, both.pem (both) and client.pem (both)."""

    directory: Path

    def __getitem__(self, name: str) -> Path:
        return self.directory / name

    def client_context(self, *, shows: str | None = None, alpn: tuple[str, ...] = ("http/1.1",)) -> ssl.SSLContext:
        """Of a client that trusts the authority, and may show a certificate."""
        context = ssl.create_default_context(cafile=self["ca.pem"])
        context.set_alpn_protocols(list(alpn))
        if shows is not None:
            context.load_cert_chain(self[shows])
        return context


def make_certificates(directory: Path) -> Certificates:
    authority = trustme.CA()
    server = authority.issue_cert("localhost", "127.0.0.1", "::1")
    authority.cert_pem.write_to_path(directory / "ca.pem")
    server.cert_chain_pems[0].write_to_path(directory / "server.pem")
    server.private_key_pem.write_to_path(directory / "server.key")
    server.private_key_and_cert_chain_pem.write_to_path(directory / "both.pem")
    authority.issue_cert("somebody").private_key_and_cert_chain_pem.write_to_path(directory / "client.pem")
    trustme.CA().issue_cert("stranger").private_key_and_cert_chain_pem.write_to_path(directory / "stranger.pem")
    return Certificates(directory)
