"""Sockets that are older than the server: as systemd hands them over, and held while one server follows another."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import ssl
import sys
from contextlib import closing
from pathlib import Path

import httpx
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.helpers.certificates import make_certificates
from tests.helpers.ports import lasting_ports
from tests.helpers.server import READY, open_process

pytestmark = pytest.mark.process

HAND_OVER = """
import fcntl, os, sys
numbers = [int(number) for number in sys.argv[1].split(",")]
# Out of the way first: none is overwritten before it is copied.
copies = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 100) for number in numbers]
for place, copy in enumerate(copies):
    os.dup2(copy, 3 + place)
os.environ |= {"LISTEN_FDS": str(len(numbers)), "LISTEN_PID": str(os.getpid())}
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
"""What a service manager does between fork and exec."""
BODY = {"prompt": "once", "max_tokens": 3}
SAID = re.compile(r"taking connections of the service manager's sockets \(not --host, --port, --uds\): (.+)")


def serving(checkpoint: Path, *flags: str) -> list[str]:
    return ["-m", "app.cli", "serve", str(checkpoint), "--load-format", "dummy", *flags]


def handing_over(listeners: list[socket.socket], command: list[str]) -> list[str]:
    numbers = ",".join(str(listener.fileno()) for listener in listeners)
    return [sys.executable, "-c", HAND_OVER, numbers, *command]


async def ask(url: str, uds: Path | None = None, trusted: ssl.SSLContext | bool = True) -> int:
    transport = httpx.AsyncHTTPTransport(uds=None if uds is None else str(uds), verify=trusted)
    async with httpx.AsyncClient(base_url=url, transport=transport, timeout=60) as http:
        return (await http.post("/v1/completions", json=BODY)).status_code


@pytest.mark.parametrize("num_servers", [1, 2])
async def test_who_connects_between_two_servers_waits_and_is_answered(
    checkpoint: Path, tmp_path: Path, num_servers: int
) -> None:
    """Two API servers, and these over TLS."""
    path, scheme, trusted = tmp_path / "s", "http", True
    flags: tuple[str, ...] = ()
    if num_servers > 1:
        made = make_certificates(tmp_path)
        scheme, trusted = "https", made.client_context()
        files = ("--ssl-certfile", str(made["server.pem"]), "--ssl-keyfile", str(made["server.key"]))
        flags = ("--api-server-count", str(num_servers), *files)
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as tcp,
        closing(socket.create_server(str(path), family=socket.AF_UNIX)) as unix,
    ):
        where = f"127.0.0.1:{tcp.getsockname()[1]}"
        places = [(f"{scheme}://{where}", None, trusted), (f"{scheme}://localhost", path, trusted)]
        command = handing_over([tcp, unix], serving(checkpoint, "--port", "1", *flags))
        given = [tcp.fileno(), unix.fileno()]
        async with open_process(command, descriptors=given) as server:
            assert (await server.until_said(SAID))[1] == f"{where}, unix:{path}"
            await server.until_said(READY)
            assert [await ask(*place) for place in places] == [200, 200]
            for pid in server.children().values():
                assert b"LISTEN_FDS" not in await trio.Path(f"/proc/{pid}/environ").read_bytes()
            server.signal(signal.SIGTERM)
            assert await server.wait() == 0
        found: list[int] = []

        async def ask_too_early(place: tuple[str, Path | None, ssl.SSLContext | bool]) -> None:
            found.append(await ask(*place))

        async with trio.open_nursery() as nursery:
            for place in places:
                nursery.start_soon(ask_too_early, place)
            await wait_all_tasks_blocked()
            async with open_process(command, descriptors=given) as server:
                await server.until_said(READY)
                with trio.fail_after(30):
                    while len(found) < 2:
                        await trio.sleep(0.02)
        assert found == [200, 200]


async def test_one_that_is_stopped_while_it_starts_leaves_who_waits_to_the_next(checkpoint: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as tcp:
        command = handing_over([tcp], serving(checkpoint))
        found: list[int] = []

        async def ask_too_early() -> None:
            found.append(await ask(f"http://127.0.0.1:{tcp.getsockname()[1]}"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_too_early)
            async with open_process(command, descriptors=[tcp.fileno()]) as server:
                await server.until_said(SAID)
                server.signal(signal.SIGTERM)
                assert await server.wait() == 0
            async with open_process(command, descriptors=[tcp.fileno()]) as server:
                await server.until_said(READY)
                with trio.fail_after(30):
                    while not found:
                        await trio.sleep(0.02)
        assert found == [200]


async def test_systemd_starts_it_with_the_first_connection(checkpoint: Path) -> None:
    program = shutil.which("systemd-socket-activate")
    if program is None:
        pytest.skip("systemd-socket-activate is not installed")
    [port] = lasting_ports(1)
    command = [program, "-l", f"127.0.0.1:{port}", "--fdname", "http", sys.executable, *serving(checkpoint)]
    async with open_process(command) as server:
        await server.until_said(re.compile("Listening on"))
        assert await ask(f"http://127.0.0.1:{port}") == 200
        server.signal(signal.SIGTERM)
        assert await server.wait() == 0


async def test_an_address_for_everybody_without_a_key_is_one_sentence(checkpoint: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as public:
        command = handing_over([public], serving(checkpoint))
        async with open_process(command, descriptors=[public.fileno()]) as server:
            assert await server.wait() == 1
            await server.until_silent()
            port = public.getsockname()[1]
            assert [line for line in server.log if line.startswith("trillm: ")] == [
                f"trillm: the service manager listens on 0.0.0.0:{port}, which can be reached from other machines, and "
                "there is no --api-key: give one (or VLLM_API_KEY in the environment), or have it listen on 127.0.0.1"
            ]
