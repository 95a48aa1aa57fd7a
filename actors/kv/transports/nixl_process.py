"""The process in which NIXL runs, beside a connector: it maps the connector's window, reads from others' windows what
it is told to, and lets others read. Started by actors/kv/transports/nixl_life.py.

A process of its own, because NIXL has no way to stop a read but to end whoever reads, since UCX ends a process where it
sees no other way out, and since what strangers send to UCX's port is to reach as little as possible. It has one thread,
and no event to wait for that would tell of all devices: while something is under way it looks again and again, with
short pauses, and else hardly ever.
"""

from __future__ import annotations

import importlib
import mmap
import os
import secrets
import select
import socket
import sys
import time
from collections.abc import Iterable
from typing import Any, final

import numpy as np

from actors.kv.transports.nixl_messages import (
    LENGTH,
    TO_PROCESS,
    Agent,
    Attend,
    Done,
    Failed,
    FromProcess,
    NoAgent,
    Read,
    Started,
    encode,
)
from actors.parent_death import die_with_parent
from protocol.nixl_module import HOW_TO_INSTALL, nixl_module

HOT_SECONDS = 0.002
"""After the last message, in which there are no pauses."""
BUSY_PAUSE = 100e-6
"""Between two looks while something is under way."""
LINGER_SECONDS = 5.0
"""After a reader has gone, perhaps because it was cancelled: what it had begun comes to its end."""
LINGER_PAUSE = 2e-3
IDLE_PAUSE = 0.5
MAX_OWNERS = 256
"""That are remembered."""


class BrokenNixlError(Exception):
    """It cannot be used here."""


@final
class NixlProcess:
    """`frame_bytes` is the size of a frame here and with everybody that is read from."""

    def __init__(self, connector: socket.socket, window: mmap.mmap, frame_bytes: int) -> None:
        """Raises BrokenNixlError."""
        self._connector = connector
        self._frame_bytes = frame_bytes
        self._address = np.frombuffer(window, np.uint8).ctypes.data
        self._nixl = _open_nixl()
        try:
            self._registered = self._nixl.register_memory([(self._address, len(window), 0, "")], "DRAM")
            self.described = Agent(self._nixl.get_agent_metadata(), self._address)
        except Exception as error:
            raise BrokenNixlError(f"NIXL cannot register {len(window)} bytes of memory: {_text(error)}") from error
        self._owners: dict[bytes, str] = {}
        """Their names, by their metadata; the last used come last."""
        self._transfers: dict[int, tuple[Any, str]] = {}
        """By the numbers of reads: what NIXL has of them, and from whom."""
        self._is_read = False
        self._attends_until = self._hot_until = 0.0

    def run(self) -> None:
        """Until the connector is gone."""
        while True:
            readable, _, _ = select.select([self._connector], [], [], self._pause())
            if readable:
                message = receive(self._connector)
                if message is None:
                    return
                self._take(TO_PROCESS.decode(message))
            self._nixl.get_new_notifs()  # this is also what moves bytes and connections on
            self._look()

    def _pause(self) -> float:
        now = time.monotonic()
        if self._transfers or self._is_read:
            return 0.0 if now < self._hot_until else BUSY_PAUSE
        return LINGER_PAUSE if now < self._attends_until else IDLE_PAUSE

    def _take(self, message: Read | Attend) -> None:
        now = time.monotonic()
        self._hot_until = now + HOT_SECONDS
        match message:
            case Attend(is_read):
                self._is_read = is_read
                self._attends_until = now + LINGER_SECONDS
            case Read():
                self._read(message)

    # ------------------------------------------------------------------ reading

    def _read(self, message: Read) -> None:
        was_begun = False
        try:
            name = self._meet(message.owner)
            handle = self._nixl.initialize_xfer("READ", *self._descriptors(message), name)
            was_begun = True
            self._transfers[message.number] = handle, name
            self._nixl.transfer(handle)
        except Exception as error:  # NIXL has no root of its exceptions
            self._transfers.pop(message.number, None)
            self._say(Failed(message.number, _text(error), was_begun))

    def _meet(self, owner: Agent) -> str:
        name = self._owners.pop(owner.metadata, None)
        if name is None:
            name = self._nixl.add_remote_agent(owner.metadata)
            name = name.decode() if isinstance(name, bytes) else str(name)
            if name in self._owners.values() or name == self._nixl.name:
                raise BrokenNixlError(f"another connector goes by the name of {name} already")
            self._forget_owners()
        self._owners[owner.metadata] = name
        return name

    def _forget_owners(self) -> None:
        in_use = {name for _, name in self._transfers.values()}
        for metadata, name in list(self._owners.items()):
            if len(self._owners) < MAX_OWNERS:
                break
            if name not in in_use:
                del self._owners[metadata]
                self._nixl.remove_remote_agent(name)

    def _descriptors(self, message: Read) -> tuple[Any, Any]:
        """Ours and theirs. What lies one after the other on both sides is one."""
        sources, frames = np.array(message.sources, np.uint64), np.array(message.frames, np.uint64)
        goes_on = (np.diff(sources) == 1) & (np.diff(frames) == 1)
        first = np.flatnonzero(np.concatenate([[True], ~goes_on]))
        sizes = np.diff(np.append(first, len(sources))).astype(np.uint64) * np.uint64(self._frame_bytes)
        return (
            self._listed(self._address, frames[first], sizes),
            self._listed(message.owner.address, sources[first], sizes),
        )

    def _listed(self, address: int, frames: np.ndarray, sizes: np.ndarray) -> Any:  # noqa: ANN401  it has no types
        places = np.uint64(address) + frames * np.uint64(self._frame_bytes)
        return self._nixl.get_xfer_descs(np.stack([places, sizes, np.zeros_like(sizes)], axis=1), "DRAM")

    def _look(self) -> None:
        """Which reads are over."""
        for number, (handle, _) in list(self._transfers.items()):
            answer: FromProcess | None = None
            try:
                state = self._nixl.check_xfer_state(handle)
                if state == "DONE":
                    answer = Done(number)
                elif state != "PROC":
                    answer = Failed(number, f"NIXL says {state}", True)
            except Exception as error:
                answer = Failed(number, _text(error), True)
            if answer is not None:
                del self._transfers[number]
                if isinstance(answer, Done):
                    self._nixl.release_xfer_handle(handle)
                self._say(answer)

    def _say(self, message: FromProcess) -> None:
        send(self._connector, message)


def _open_nixl() -> Any:  # noqa: ANN401  it has no types
    module = nixl_module()
    if module is None:
        raise BrokenNixlError(HOW_TO_INSTALL)
    try:
        api = importlib.import_module(f"{module}._api")
        config = api.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
        nixl = api.nixl_agent(secrets.token_hex(16), config)
    except Exception as error:
        raise BrokenNixlError(f"NIXL ({module}) cannot be used: {_text(error)}") from error
    if "UCX" not in nixl.backends:
        raise BrokenNixlError(f"NIXL ({module}) has no UCX")
    return nixl


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def send(connector: socket.socket, message: FromProcess) -> None:
    encoded = encode(message)
    connector.sendall(LENGTH.pack(len(encoded)) + encoded)


def receive(connector: socket.socket) -> bytes | None:
    """None at the end."""
    head = _receive_exactly(connector, LENGTH.size)
    return None if head is None else _receive_exactly(connector, LENGTH.unpack(head)[0])


def _receive_exactly(connector: socket.socket, size: int) -> bytes | None:
    received = bytearray()
    while len(received) < size:
        some = connector.recv(size - len(received))
        if not some:
            return None
        received += some
    return bytes(received)


def main(arguments: Iterable[str]) -> None:
    """Its connector is its standard input."""
    parent, window_fd, window_bytes, frame_bytes = map(int, arguments)
    die_with_parent(parent)
    with socket.socket(fileno=0) as connector:
        try:
            window = mmap.mmap(window_fd, window_bytes)
            os.close(window_fd)
            process = NixlProcess(connector, window, frame_bytes)
        except BrokenNixlError as error:
            send(connector, NoAgent(str(error)))
            return
        send(connector, Started(process.described))
        process.run()


if __name__ == "__main__":
    main(sys.argv[1:])
