"""TLS: the bounds of plain connections hold, handshakes are bounded, and files that cannot be used are one sentence."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from hypercorn.config import Sockets
from hypercorn.trio.run import worker_serve
from hypercorn.utils import wrap_app

from app.bounded_send import BoundedSends
from app.descriptors import ConnectionLimit
from app.http2 import bounded_http2
from app.listening import hypercorn_config, listen
from app.settings import Settings
from app.tls import TlsFiles, server_context
from protocol.errors import BadRequestError, StartError
from tests.helpers.certificates import Certificates, make_certificates
from tests.helpers.http2_client import Http2Client

BIG = b"x" * (12 * 2**20)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: Any) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


class Place:
    """A server whose /big is BIG and everything else a few bytes; `scopes` are what it was asked."""

    def __init__(self, sends: BoundedSends) -> None:
        self.sends = sends
        self.port = 0
        self.stop = trio.Event()
        self.stopped = trio.Event()
        self.scopes: list[dict[str, Any]] = []
        self.ended = trio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while True:
                await send({"type": (await receive())["type"] + ".complete"})
        self.scopes.append(scope)
        body = BIG if scope["path"] == "/big" else b"small"
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": body})
        finally:
            self.ended.set()

    @asynccontextmanager
    async def connect(self, context: ssl.SSLContext) -> AsyncIterator[trio.SSLStream[trio.SocketStream]]:
        raw = await trio.open_tcp_stream("127.0.0.1", self.port)
        stream = trio.SSLStream(raw, context, server_hostname="localhost", https_compatible=True)
        try:
            await stream.do_handshake()
            yield stream
        finally:
            await trio.aclose_forcefully(stream)

    async def ask(self, context: ssl.SSLContext, path: str = "/") -> bytes:
        async with self.connect(context) as stream:
            await stream.send_all(b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % path.encode())
            return b"".join([piece async for piece in stream])


@asynccontextmanager
async def open_place(
    certificates: Certificates, seconds: float = 1000, limit: int = 100_000, handshake: float = 10, **flags: Any
) -> AsyncIterator[Place]:
    place = Place(BoundedSends(seconds))
    settings = Settings(ssl_certfile=certificates["server.pem"], ssl_keyfile=certificates["server.key"], **flags)
    config = hypercorn_config(settings)
    config.ssl_handshake_timeout = handshake
    listener = listen("127.0.0.1", 0, 100)
    place.port = listener.getsockname()[1]

    async def run() -> None:
        sockets = Sockets([listener], [], [])
        await worker_serve(wrap_app(place, 1, "asgi"), config, sockets=sockets, shutdown_trigger=place.stop.wait)
        place.stopped.set()

    connections = ConnectionLimit(limit)
    mended = place.sends.installed(), bounded_http2(place.sends, enabled=True), connections.installed()
    with trio.fail_after(20), mended[0], mended[1], mended[2], listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            yield place
            nursery.cancel_scope.cancel()


@pytest.mark.process
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_it_speaks_tls_1_2_and_1_3(certificates: Certificates, version: ssl.TLSVersion) -> None:
    context = certificates.client_context()
    context.minimum_version = context.maximum_version = version
    async with open_place(certificates) as place:
        assert (await place.ask(context)).endswith(b"small\r\n0\r\n\r\n")
    assert place.scopes[0]["scheme"] == "https"


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
async def test_it_speaks_nothing_older(certificates: Certificates) -> None:
    context = certificates.client_context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    async with open_place(certificates) as place:
        with pytest.raises(trio.BrokenResourceError):
            await place.ask(context)
    assert place.scopes == []


@pytest.mark.process
@pytest.mark.parametrize(
    ("asked", "flags", "spoken"),
    [
        (("h2", "http/1.1"), {}, "h2"),
        (("http/1.1",), {}, "http/1.1"),
        (("h2", "http/1.1"), {"http2": False}, "http/1.1"),
    ],
)
async def test_http_2_is_agreed_on_where_it_is_enabled(
    certificates: Certificates, asked: tuple[str, ...], flags: dict[str, Any], spoken: str
) -> None:
    context = certificates.client_context(alpn=asked)
    async with open_place(certificates, **flags) as place, place.connect(context) as stream:
        assert stream.selected_alpn_protocol() == spoken
        if spoken == "h2":
            client = Http2Client(stream)
            await client.begin()
            assert await client.until_ended(await client.ask("/")) == (200, b"small")
            assert await client.until_ended(await client.ask("/big")) == (200, BIG)


@pytest.mark.process
@pytest.mark.parametrize(
    ("cert_reqs", "shown", "is_served"),
    [
        *((1, None, True), (1, "client.pem", True), (1, "stranger.pem", False)),
        *((2, None, False), (2, "client.pem", True), (2, "stranger.pem", False)),
    ],
)
async def test_clients_show_certificates_where_they_have_to(
    certificates: Certificates, cert_reqs: int, shown: str | None, is_served: bool
) -> None:
    async with open_place(certificates, ssl_ca_certs=certificates["ca.pem"], ssl_cert_reqs=cert_reqs) as place:
        answer = b""
        with suppress(trio.BrokenResourceError):
            answer = await place.ask(certificates.client_context(shows=shown))
        assert answer.startswith(b"HTTP/1.1 200") == is_served
        assert len(place.scopes) == is_served


@pytest.mark.process
@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"])
async def test_who_does_not_agree_on_keys_is_cut_off_after_the_time_and_others_are_served(
    certificates: Certificates, said: bytes
) -> None:
    async with open_place(certificates, handshake=0.3) as place:
        silent = await trio.open_tcp_stream("127.0.0.1", place.port)
        if said:
            await silent.send_all(said)
        assert (await place.ask(certificates.client_context())).endswith(b"small\r\n0\r\n\r\n")
        with suppress(trio.BrokenResourceError):
            while await silent.receive_some():
                pass
        await silent.aclose()


@pytest.mark.process
async def test_who_has_not_agreed_on_keys_yet_does_not_hold_up_the_end(certificates: Certificates) -> None:
    async with open_place(certificates, handshake=1000) as place, await trio.open_tcp_stream("127.0.0.1", place.port):
        await place.ask(certificates.client_context())
        began = trio.current_time()
        place.stop.set()
        await place.stopped.wait()
        assert trio.current_time() - began < 5


@pytest.mark.process
@pytest.mark.parametrize("alpn", ["http/1.1", "h2"])
async def test_who_reads_nothing_is_cut_off_after_the_time(certificates: Certificates, alpn: str) -> None:
    async with open_place(certificates, 0.3) as place:
        context = certificates.client_context(alpn=(alpn,))
        async with place.connect(context) as deaf:
            began = trio.current_time()
            if alpn == "h2":
                client = Http2Client(deaf)
                await client.begin()
                await client.ask("/big")
            else:
                await deaf.send_all(b"GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await place.ended.wait()
            assert 0.3 <= trio.current_time() - began < 5
        assert (await place.ask(certificates.client_context())).endswith(b"small\r\n0\r\n\r\n")


@pytest.mark.process
async def test_connections_leave_a_reserve_of_descriptors(certificates: Certificates) -> None:
    async with open_place(certificates, limit=4) as place:
        with pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError)):
            await place.ask(certificates.client_context())
    assert place.scopes == []


def refusal(make: Callable[[], object], kind: type[Exception] = StartError) -> str:
    with pytest.raises(kind) as caught:
        make()
    return str(caught.value)


def test_files_that_cannot_be_used_are_named(certificates: Certificates, tmp_path: Path) -> None:
    def said(certfile: Path, keyfile: Path | None = None, **more: Any) -> str:
        return refusal(partial(server_context, TlsFiles(certfile, keyfile, **more), http2=True))

    nothing, text = tmp_path / "nothing.pem", tmp_path / "text.pem"
    text.write_text("no PEM")
    assert f"--ssl-certfile {nothing} cannot be read: No such file" in said(nothing)
    assert f"--ssl-keyfile {nothing} cannot be read: No such file" in said(certificates["server.pem"], nothing)
    assert "are no certificate and key in PEM" in said(text, certificates["server.key"])
    assert "is the key in a file of its own, for --ssl-keyfile?" in said(certificates["server.pem"])
    assert "is not the key of --ssl-certfile" in said(certificates["server.pem"], certificates["client.pem"])
    assert f"--ssl-ca-certs {nothing} cannot be read" in said(certificates["both.pem"], ca_certs=nothing)
    assert f"--ssl-ca-certs {text} has no certificate" in said(certificates["both.pem"], ca_certs=text)


def test_an_encrypted_key_is_refused_and_nobody_is_asked(certificates: Certificates, tmp_path: Path) -> None:
    key = load_pem_private_key(certificates["server.key"].read_bytes(), None)
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    (tmp_path / "encrypted.key").write_bytes(encrypted)
    files = TlsFiles(certificates["server.pem"], tmp_path / "encrypted.key")
    assert "is encrypted" in refusal(partial(server_context, files, http2=True))


def test_certificate_and_key_may_be_in_one_file(certificates: Certificates) -> None:
    assert server_context(TlsFiles(certificates["both.pem"]), http2=False).verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"ssl_keyfile": Path("k")}, "need an --ssl-certfile"),
        ({"ssl_cert_reqs": 2}, "need an --ssl-certfile"),
        ({"ssl_certfile": Path("c"), "ssl_cert_reqs": 2}, "--ssl-cert-reqs 2 needs --ssl-ca-certs"),
        ({"ssl_certfile": Path("c"), "ssl_cert_reqs": 3}, "--ssl-cert-reqs must be 0 (none), 1 (optional)"),
        ({"middleware": ("package.Class",)}, "--middleware is not supported"),
    ],
)
def test_flags_that_do_not_belong_together_are_refused(flags: dict[str, Any], text: str) -> None:
    assert text in refusal(partial(Settings, **flags), BadRequestError)
