"""What a transport over TCP is held against: bytes through a blocking socket over loopback, and nothing else.

Run as a module it is who sends: for each 8 bytes that it gets, as many bytes as these say.
"""

from __future__ import annotations

import socket
import sys

import msgspec
import numpy as np

from scripts.benchmark.kv.child import say

PIECE_BYTES = 1 << 20
SECONDS = 60.0


class Job(msgspec.Struct, frozen=True):
    most_bytes: int


class Place(msgspec.Struct, frozen=True):
    port: int


class PlainReader:
    """The other end. A context."""

    def __init__(self, place: Place) -> None:
        self._socket = socket.create_connection(("127.0.0.1", place.port), timeout=SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def read_into(self, memory: memoryview) -> None:
        """As many bytes as it has, in pieces of up to 1 MiB."""
        self._socket.sendall(len(memory).to_bytes(8, "big"))
        received = 0
        while received < len(memory):
            count = self._socket.recv_into(memory[received : received + PIECE_BYTES])
            if not count:
                raise OSError("the plain socket was closed")
            received += count

    def __enter__(self) -> PlainReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def send(job: Job) -> None:
    """Until the reader has gone."""
    memory = np.ones(job.most_bytes, np.uint8).data
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SECONDS)
        say(Place(listener.getsockname()[1]))
        connection, _ = listener.accept()
    with connection, connection.makefile("rb") as asked:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while number := asked.read(8):
            size = int.from_bytes(number, "big")
            for start in range(0, size, PIECE_BYTES):
                connection.sendall(memory[start : min(start + PIECE_BYTES, size)])


if __name__ == "__main__":
    send(msgspec.json.decode(sys.argv[1], type=Job))
