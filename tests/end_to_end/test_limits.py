"""Many connections, slow ones, and more than there are descriptors for: each costs itself, and nobody else."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import struct
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
import trio

from tests.helpers.processes import until_seen_asleep
from tests.helpers.server import LISTENING, READY, Server, open_process, open_server

pytestmark = pytest.mark.process

SLOW = ("--dummy-step-seconds", "0.005")
BODY = {"prompt": "once", "max_tokens": 100, "ignore_eos": True, "temperature": 0, "stream": True}


def post(body: dict[str, object]) -> bytes:
    data = json.dumps(body).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d"
    return head % len(data) + b"\r\n\r\n" + data


async def connect(server: Server, receive_buffer: int | None = None) -> trio.SocketStream:
    raw = trio.socket.socket()
    if receive_buffer is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    await raw.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
    return trio.SocketStream(raw)


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def num_descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


async def some_texts(server: Server, count: int = 10) -> set[str]:
    """What so many streams at once say."""
    texts: set[str] = set()

    async def read() -> None:
        async with server.client() as http:
            texts.add((await http.post("/v1/completions", json=BODY | {"stream": False})).json()["choices"][0]["text"])

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(read)
    return texts


async def test_readers_of_one_byte_a_second_cost_the_others_nothing_and_little_memory(checkpoint):
    async with open_server(checkpoint, *SLOW) as server, AsyncExitStack() as stack, trio.open_nursery() as nursery:
        alone = await some_texts(server)
        before = resident_bytes(server.pid)
        ended = 0

        async def sip(client: trio.SocketStream) -> None:
            nonlocal ended
            while await client.receive_some(1):
                await trio.sleep(1)
            ended += 1

        many = BODY | {"max_tokens": 1500, "n": 2, "logprobs": 5}
        for _ in range(10):
            client = await stack.enter_async_context(await connect(server, 2048))
            await client.send_all(post(many))
            nursery.start_soon(sip, client)
        while await server.num_requests() < 20:
            await trio.sleep(0.02)
        beside = await some_texts(server)

        assert beside == alone
        assert len(alone) == 1
        assert ended == 0, "the others were done first: a loop that waits for a slow one waits for hours"
        assert resident_bytes(server.pid) - before < 100 * 2**20
        nursery.cancel_scope.cancel()


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 1500, reason="needs 1,500 descriptors itself")
async def test_a_thousand_idle_connections_stay_open_and_are_in_nobody_s_way(checkpoint):
    command = server_command(checkpoint, soft=256)  # what the server raises for itself
    async with open_process(command) as server, AsyncExitStack() as stack:
        server.url = (await server.until_said(LISTENING))[1]
        await server.until_said(READY)
        alone = await some_texts(server)
        before = resident_bytes(server.pid)
        clients = []
        ask = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for _ in range(1000):
            client = await stack.enter_async_context(await connect(server))
            await client.send_all(ask)
            clients.append(client)
        for client in clients:
            assert (await client.receive_some()).startswith(b"HTTP/1.1 200")
        assert await some_texts(server) == alone
        await until_seen_asleep(server.pid)
        assert resident_bytes(server.pid) - before < 200 * 2**20
        for client in clients[::100]:
            await client.send_all(ask)
            assert (await client.receive_some()).startswith(b"HTTP/1.1 200")


async def is_served(server: Server) -> bool:
    try:
        await server.until_ready()
    except httpx.TransportError:
        return False
    return True


def server_command(checkpoint: Path, soft: int, hard: int | None = None) -> list[str]:
    """`trillm serve` under a limit of descriptors."""
    limits = f"ulimit -Sn {soft}" + (f"; ulimit -Hn {hard}" if hard else "")
    flags = ["--load-format", "dummy", "--port", "0", *SLOW]
    return ["sh", "-c", f'{limits}; exec "$@"', "sh", sys.executable, "-m", "app.cli", "serve", str(checkpoint), *flags]


ASKED = {
    "nothing": b"",
    "half a request": b"GET /health HTTP/1.1\r\nHost:",
    "a whole one": b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a stream that it leaves": post(BODY | {"max_tokens": 1500}),
    "a plain answer that it leaves": post(BODY | {"max_tokens": 1500, "stream": False}),
    "no HTTP": b"\x16\x03\x01 hello\r\n\r\n",
}


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "closed"])
async def test_a_connection_that_its_client_ends_gives_its_descriptor_back_at_once(checkpoint, reset):
    # A standby would be started at some time, and its pipes are descriptors too.
    async with open_server(checkpoint, "--no-engine-standby", *SLOW) as server:
        await server.until_ready()
        async with server.client() as client:  # so that every link between the processes is there
            assert (await client.post("/v1/completions", json=BODY | {"stream": False, "max_tokens": 2})).is_success
        before = num_descriptors(server.pid)
        for what, asked in ASKED.items():
            for _ in range(10):
                async with await connect(server) as client:
                    await client.send_all(asked)
                    if what in ("a whole one", "a stream that it leaves"):
                        assert (await client.receive_some()).startswith(b"HTTP/1.1 200")
                    if reset:
                        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with trio.move_on_after(20) as within:
                while num_descriptors(server.pid) > before:
                    await trio.sleep(0.02)
            assert not within.cancelled_caught, what


async def test_out_of_descriptors_an_actor_is_still_restarted_and_service_resumes(checkpoint):
    async with open_process(server_command(checkpoint, soft=64, hard=64)) as server:
        server.url = (await server.until_said(LISTENING))[1]
        await server.until_said(READY)
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(await connect(server))
            await first.send_all(post(BODY | {"max_tokens": 1000}))
            assert (await first.receive_some(10)).startswith(b"HTTP/1.1 2")
            for _ in range(80):
                await stack.enter_async_context(await connect(server))
            await server.until_said(re.compile("a connection was closed: there are .* descriptors"))
            await until_seen_asleep(server.pid)
            old = server.children()["engine-0"]
            os.kill(old, signal.SIGKILL)
            received = b""
            while not received.endswith(b"0\r\n\r\n"):
                piece = await first.receive_some()
                assert piece, received
                received += piece
            assert b'"error"' not in received
            assert b'"finish_reason":"length"' in received
            assert server.children()["engine-0"] != old
        with trio.fail_after(30):
            while not await is_served(server):
                await trio.sleep(0.02)
        texts = await some_texts(server)
        assert len(texts) == 1


@pytest.mark.parametrize(
    "beginning",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\6\4\0\0\0\0\0" + b"\0\4\0\0\0\0",  # SETTINGS: send me nothing
        b"GET /ping HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n",
    ],
    ids=["preface", "upgrade"],
)
async def test_without_http_2_nobody_is_answered_in_it(checkpoint, beginning):
    async with open_server(checkpoint, "--no-http2") as server:
        await server.until_said(READY)
        async with await connect(server) as stream:
            await stream.send_all(beginning)
            answer = await stream.receive_some()
    assert answer.startswith(b"HTTP/1.1 "), answer[:50]
    assert not answer.startswith(b"HTTP/1.1 101")
