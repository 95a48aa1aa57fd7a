"""Garbage on every socket of a running server: nobody dies, and streams say what they say alone."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

import pytest
import trio
import zmq

from tests.helpers.intruder import frames
from tests.helpers.server import Server, open_server

pytestmark = pytest.mark.process

COUNT = 600
BODY = {"max_tokens": 150, "ignore_eos": True, "temperature": 1, "seed": 7, "logprobs": 1}


async def answers(server: Server) -> list[object]:
    """What some requests at once get, as far as it does not name the answer."""
    found: dict[int, object] = {}

    async def ask(number: int) -> None:
        async with server.client() as http:
            reply = await http.post("/v1/completions", json=BODY | {"prompt": f"once {number}"})
        assert reply.status_code == 200, reply.text
        found[number] = reply.json()["choices"]

    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(ask, number)
    return [found[number] for number in range(4)]


TAKES = {
    ("e", ".in"): "ENGINE_INPUT",
    ("e", ".out"): "subscriptions",
    ("o", ".in"): "OUTPUT_INPUT",
    ("o", ".app"): "APP_INPUT",
    ("a", ".in"): "API_INPUT",
    ("a", ".up"): "HOUSE_INPUT",
}


def sockets_in(directory: Path) -> list[tuple[str, str]]:
    """What each socket takes, and its address."""
    paths = [path for path in directory.glob("trillm-*/*") if path.is_socket()]
    return sorted((TAKES[path.name[0], path.suffix], f"ipc://{path}") for path in paths)


def speak_zmq(addresses: list[tuple[str, str]]) -> None:
    """Frames to whoever pulls, and nonsense for subscriptions; in a thread."""
    with zmq.Context() as context:
        opened = []
        for name, address in addresses:
            kind = zmq.XSUB if name == "subscriptions" else zmq.PUSH
            opened.append(context.socket(kind))
            opened[-1].setsockopt(zmq.LINGER, 2000)
            opened[-1].connect(address)
            if kind == zmq.PUSH:
                for epoch in (0, 1, 2, 3):
                    for frame in frames(name, epoch, COUNT // 4, seed=epoch * COUNT):
                        opened[-1].send(frame)
                        opened[-1].send_multipart([frame, frame[:5]])
            else:
                for number in range(COUNT):
                    opened[-1].send(random.Random(number).randbytes(number % 50))
                opened[-1].send(b"\x01")
        for each in opened:
            each.close()


def speak_nonsense(addresses: list[tuple[str, str]]) -> None:
    """Bytes that are not ZMQ's own protocol, and its greeting followed by a frame of 2**62 bytes; in a thread."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL".ljust(53, b"\x00")
    ready = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH"
    huge = b"\x02" + (2**62).to_bytes(8, "big") + b"x" * 1000
    for _, address in addresses:
        for data in (b"GET / HTTP/1.1\r\n\r\n", random.Random(1).randbytes(5000), greeting + ready + huge, b""):
            with socket.socket(socket.AF_UNIX) as raw:
                raw.settimeout(5)
                raw.connect(address.removeprefix("ipc://"))
                try:
                    raw.sendall(data)
                except OSError:
                    continue  # it has hung up already


OF_ONE = ["APP_INPUT", "ENGINE_INPUT", "OUTPUT_INPUT", "subscriptions"]
OF_TWO = sorted([*OF_ONE, *OF_ONE, "API_INPUT", "API_INPUT", "HOUSE_INPUT", "HOUSE_INPUT"])
OF_TWO.remove("ENGINE_INPUT")


@pytest.mark.parametrize(("flags", "sockets"), [((), OF_ONE), (("--api-server-count", "2"), OF_TWO)])
async def test_garbage_on_every_socket_kills_nobody_and_changes_no_stream(checkpoint, tmp_path_factory, flags, sockets):
    short = tmp_path_factory.mktemp("r")
    slow = ("--dummy-step-seconds", "0.01")
    async with open_server(checkpoint, *slow, *flags, XDG_RUNTIME_DIR=str(short)) as server:
        while len(sockets_in(short)) < len(sockets):
            await trio.sleep(0.02)
        alone = await answers(server)
        actors = server.children()
        addresses = sockets_in(short)
        assert [name for name, _ in addresses] == sockets
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, speak_zmq, addresses)
            nursery.start_soon(trio.to_thread.run_sync, speak_nonsense, addresses)
            assert await answers(server) == alone
        assert await answers(server) == alone
        assert server.children() == actors
        with trio.fail_after(10):
            while await server.num_requests() > 0 or await server.gauge("kv_cache_usage_perc") > 0:
                await trio.sleep(0.05)


def control_pipes(pid: int) -> list[int]:
    """The descriptors of a child's two pipes to its parent (stderr is none of them)."""
    links = {int(path.name): os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()}
    stderr = links[2]
    return sorted(number for number, link in links.items() if link.startswith("pipe:") and link != stderr)


@pytest.mark.parametrize(
    ("name", "garbage"),
    [("engine-0", b"\x03\x00\x00\x00abc" * 20), ("output-0", b"\xff" * 64)],
    ids=["the engine's, not decodable", "the output handler's, too long"],
)
async def test_garbage_in_a_control_pipe_costs_a_restart_and_no_answer(checkpoint, name, garbage):
    async with open_server(checkpoint, "--dummy-step-seconds", "0.01") as server:
        alone = await answers(server)
        pid = server.children()[name]
        async with trio.open_nursery() as nursery:

            async def spoil() -> None:
                while await server.num_requests() < 4:
                    await trio.sleep(0.01)
                pipes = [os.open(f"/proc/{pid}/fd/{number}", os.O_WRONLY) for number in control_pipes(pid)]
                for pipe in pipes:
                    os.write(pipe, garbage)
                    os.close(pipe)

            nursery.start_soon(spoil)
            assert await answers(server) == alone
        while server.children().get(name) in (None, pid):
            await trio.sleep(0.02)
        await server.until_ready()
