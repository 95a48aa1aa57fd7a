"""Connections to servers behind the proxy, over sockets."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import httpcore2
import pytest
import trio
from attrs import define, field

from app.drain import Drain
from app.proxy.address import read_address
from app.proxy.counts import ProxyCounts
from app.proxy.serving import trusted
from app.proxy.upstream import Upstream
from app.proxy.upstream_client import Outgoing, UpstreamClient
from app.proxy.upstream_error import UpstreamError
from tests.helpers.certificates import Certificates, make_certificates

MODELS = Outgoing("GET", "/v1/models", [])
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@define
class Behind:
    """A server."""

    port: int = 0
    closed: trio.Event = field(factory=trio.Event)
    """One of its connections is."""

    def upstream(self, scheme: str = "http") -> Upstream:
        return Upstream("decode", read_address("--decode", f"{scheme}://127.0.0.1:{self.port}"))


@asynccontextmanager
async def open_behind(certificates: Certificates | None = None) -> AsyncIterator[Behind]:
    behind = Behind()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    if certificates is not None:
        context.load_cert_chain(certificates["both.pem"])

    async def talk(plain: trio.SocketStream) -> None:
        stream = plain if certificates is None else trio.SSLStream(plain, context, server_side=True)
        try:
            while await stream.receive_some():
                await stream.send_all(ANSWER)
        except trio.BrokenResourceError:
            pass
        behind.closed.set()

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, talk, 0, host="127.0.0.1"))
        behind.port = listener.socket.getsockname()[1]
        with trio.fail_after(5):
            yield behind
        nursery.cancel_scope.cancel()


@define
class GivenUp(httpcore2.TrioBackend):
    """The client leaves at the moment a connection is there."""

    scope: trio.CancelScope

    async def connect_tcp(self, *told, **options) -> httpcore2.AsyncNetworkStream:
        stream = await super().connect_tcp(*told, **options)
        self.scope.cancel()
        return stream


async def test_a_connection_that_is_there_when_its_client_leaves_is_closed():
    async with open_behind() as behind:
        scope = trio.CancelScope()
        async with UpstreamClient(ProxyCounts(), Drain(), backend=GivenUp(scope)) as client:
            with scope:
                async with client.open_answer(behind.upstream(), MODELS):
                    pass
            assert scope.cancelled_caught
            await behind.closed.wait()


async def test_https_servers_are_believed_by_their_certificates(certificates, caplog):
    async with open_behind(certificates) as behind:
        known = trusted(certificates["ca.pem"])
        async with (
            UpstreamClient(ProxyCounts(), Drain(), known) as client,
            client.open_answer(behind.upstream("https"), MODELS) as answer,
        ):
            assert await answer.read(9) == b"{}"
        async with UpstreamClient(ProxyCounts(), Drain(), trusted(None)) as client:
            with pytest.raises(UpstreamError, match="No decode server can be reached") as caught:
                await client.open_answer(behind.upstream("https"), MODELS).__aenter__()
            assert "certificate verify failed" in caught.value.detail
    assert "certificate verify failed" in caplog.text
