"""Rubbish for every ear of the server: what no client, actor or scanner should be able to hurt it with."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import trio
import zmq

from scripts.chaos_run.exchange import SMALL_BUFFER

LINGER_MS = 200
GOOD_HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def sockets(runtime: Path) -> list[Path]:
    """Every socket of the run."""
    return [path for path in sorted(runtime.rglob("*")) if path.is_socket()]


def send_socket_garbage(path: Path, chance: random.Random) -> int:
    """Bytes that are no ZMTP, and proper ZMTP frames with rubbish in them. How many of them; blocks for up to 1 s."""
    sent = 0
    for size in (1, 12, 64, 1000):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(0.2)
            try:
                raw.connect(str(path))
                raw.sendall(chance.randbytes(size))
                sent += 1
            except OSError:
                return sent  # its actor has just died: nobody listens here any more
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        # The engine's outputs are published by an XPUB, which hears what an XSUB says; everything else is a PULL.
        to_publisher = path.name.endswith(".out")
        peer = context.socket(zmq.XSUB if to_publisher else zmq.PUSH)
        peer.setsockopt(zmq.LINGER, LINGER_MS)
        peer.setsockopt(zmq.SNDTIMEO, LINGER_MS)
        peer.connect(f"ipc://{path}")
        for frame in frames(chance):
            try:
                peer.send(b"\x07" + frame if to_publisher else frame)
                sent += 1
            except zmq.Again:
                break
        peer.close()
    finally:
        context.term()
    return sent


def frames(chance: random.Random) -> list[bytes]:
    """Frames that are no message of any union: noise, msgpack of other things, and one that is cut short."""
    return [
        b"",
        chance.randbytes(1),
        chance.randbytes(300),
        b"\xc0",
        b"\x80",
        b"\x93\xabADD_REQUEST\x01",
        b"\x94\xabADD_REQUEST\xff\xff\xff",
        b"\x92\xa4NONE\x00",
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 2000,
        chance.randbytes(100_000),
    ]


def http_garbage(chance: random.Random) -> list[bytes]:
    """What is no HTTP, or HTTP that nobody should send."""
    return [
        b"",
        chance.randbytes(200),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + chance.randbytes(500),  # TLS to a plain port
        b"GET " + b"/a" * 40_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + chance.randbytes(60),
        GOOD_HEAD + b"Content-Length: -5\r\n\r\n",
        GOOD_HEAD + b"Content-Length: 99999999999\r\n\r\n",
        GOOD_HEAD + b"Content-Length: 4\r\n\r\n\xff\xfe{}",
        GOOD_HEAD + b"Content-Length: 40\r\n\r\n" + b"[" * 40,
        GOOD_HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        GOOD_HEAD + b'Content-Length: 200\r\n\r\n{"prompt": "half a bo',
        GOOD_HEAD + b'Content-Length: 15\r\n\r\n{"prompt": 1.5}',
    ]


async def send_http_garbage(port: int, data: bytes, seconds: float = 1.5) -> str | None:
    """What is wrong with how it was taken: any answer but a refusal. No answer at all is fine."""
    raw = trio.socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
    async with trio.SocketStream(raw) as stream:
        await raw.connect(("127.0.0.1", port))
        with trio.move_on_after(seconds):
            try:
                await stream.send_all(data)
                answer = await stream.receive_some(4096)
            except trio.BrokenResourceError:
                return None
            if answer.startswith(b"HTTP/1.1 ") and not answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 503")):
                return f"{data[:60]!r} was answered with {answer[:100]!r}"
    return None
