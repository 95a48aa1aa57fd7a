"""How one gets in: over TLS, a Unix socket, IPv6 and HTTP/2, to real processes that drain and leave nothing behind."""

from __future__ import annotations

import re
import signal
import ssl
import sys
from pathlib import Path

import httpx
import pytest
import trio

from tests.helpers.certificates import Certificates, make_certificates
from tests.helpers.server import READY, Server, open_process, open_server

pytestmark = pytest.mark.process

BODY = {"prompt": "once", "max_tokens": 40, "ignore_eos": True}
LISTENING = re.compile(r"listening on (\S+)")
SLOW = ("--dummy-step-seconds", "0.02")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def command(checkpoint: Path, *flags: str) -> list[str]:
    return [sys.executable, "-m", "app.cli", "serve", str(checkpoint), "--load-format", "dummy", *flags]


async def started(server: Server) -> str:
    """Its address."""
    address = (await server.until_said(LISTENING))[1]
    await server.until_said(READY)
    return address


async def lines(http: httpx.AsyncClient, begun: trio.Event) -> list[str]:
    """A stream's events; `begun` is set at the first."""
    found = []
    async with http.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as reply:
        assert reply.status_code == 200
        async for line in reply.aiter_lines():
            begun.set()
            found.append(line)
    return found


@pytest.mark.parametrize(("http2", "flags"), [(False, SLOW), (False, (*SLOW, "--api-server-count", "2")), (True, SLOW)])
async def test_over_tls_it_answers_and_streams_and_drains(
    checkpoint: Path, certificates: Certificates, http2: bool, flags: tuple[str, ...]
) -> None:
    files = ("--ssl-certfile", str(certificates["server.pem"]), "--ssl-keyfile", str(certificates["server.key"]))
    context = certificates.client_context()
    async with open_process(command(checkpoint, "--port", "0", *files, *flags)) as server:
        url = await started(server)
        assert url.startswith("https://127.0.0.1:")
        begun, found = trio.Event(), []
        async with httpx.AsyncClient(base_url=url, verify=context, http2=http2, timeout=30) as http:
            reply = await http.post("/v1/completions", json=BODY)
            assert (reply.status_code, reply.http_version) == (200, "HTTP/2" if http2 else "HTTP/1.1")
            async with trio.open_nursery() as nursery:

                async def stream() -> None:
                    found.extend(await lines(http, begun))

                nursery.start_soon(stream)
                await begun.wait()
                server.signal(signal.SIGTERM)
                await server.until_said(re.compile("draining"))
                if http2:  # over HTTP/1 the client has no second connection, and gets none
                    late = await http.post("/v1/completions", json=BODY)
                    assert late.status_code == 503
            assert found[-2:] == ["data: [DONE]", ""]
        assert await server.wait() == 0


async def test_over_a_unix_socket_without_a_key_and_the_file_goes_with_the_server(
    checkpoint: Path, tmp_path: Path
) -> None:
    path = tmp_path / "s"
    async with open_process(command(checkpoint, "--uds", str(path))) as server:
        assert await started(server) == f"unix:{path}"
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url="http://anything", timeout=30) as http:
            assert (await http.post("/v1/completions", json=BODY)).status_code == 200
        async with open_process(command(checkpoint, "--uds", str(path))) as second:
            assert await second.wait() == 1
            await second.until_silent()
            assert f"trillm: cannot listen on {path}: another server does" in second.log
        server.signal(signal.SIGTERM)
        assert await server.wait() == 0
    assert not path.exists()


async def test_a_killed_server_s_socket_is_taken_over(checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with open_process(command(checkpoint, "--uds", str(path))) as server:
        await started(server)
        server.signal(signal.SIGKILL)
        await server.wait()
    assert path.exists()
    async with open_process(command(checkpoint, "--uds", str(path))) as server:
        await started(server)


async def test_over_ipv6_and_http_2_without_tls(checkpoint: Path) -> None:
    async with open_server(checkpoint, "--host", "::1") as server:
        assert server.url.startswith("http://[::1]:")
        async with server.client(http1=False, http2=True) as http:
            reply = await http.post("/v1/completions", json=BODY)
            assert (reply.status_code, reply.http_version) == (200, "HTTP/2")


async def test_an_allowed_page_is_answered(checkpoint: Path) -> None:
    flags, headers = ("--allowed-origins", '["https://chat.example"]'), {"Origin": "https://chat.example"}
    async with open_server(checkpoint, *flags) as server, server.client(headers=headers) as http:
        reply = await http.post("/v1/completions", json=BODY)
        assert reply.headers["Access-Control-Allow-Origin"] == "https://chat.example"
        asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        assert (await http.options("/v1/completions", headers=asks)).status_code == 204
        assert (await http.post("/v1/completions", json=BODY, headers={"Origin": "null"})).status_code == 403


async def test_a_certificate_that_cannot_be_read_is_one_sentence(checkpoint: Path) -> None:
    async with open_process(command(checkpoint, "--ssl-certfile", "/nonexistent.pem")) as server:
        assert await server.wait() == 1
        await server.until_silent()
        assert server.log == ["trillm: --ssl-certfile /nonexistent.pem cannot be read: No such file or directory"]


async def test_under_the_hypercorn_command_its_own_flags_give_tls_and_http_2(
    checkpoint: Path, certificates: Certificates
) -> None:
    files = ("--certfile", str(certificates["server.pem"]), "--keyfile", str(certificates["server.key"]))
    hypercorn = [sys.executable, "-m", "hypercorn", "--worker-class", "trio", "--bind", "127.0.0.1:0"]
    environment = {"TRILLM_MODEL": str(checkpoint), "TRILLM_LOAD_FORMAT": "dummy"}
    async with open_process([*hypercorn, *files, "app:create_app()"], **environment) as server:
        url = (await server.until_said(re.compile(r"Running on (https://\S+)")))[1]
        await server.until_said(READY)
        context: ssl.SSLContext = certificates.client_context()
        async with httpx.AsyncClient(base_url=url, verify=context, http2=True, timeout=30) as http:
            reply = await http.post("/v1/completions", json=BODY)
            assert (reply.status_code, reply.http_version) == (200, "HTTP/2")
