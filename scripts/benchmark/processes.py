"""A server under test as a tree of processes: started, waited for, watched through /proc, and stopped for certain."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs

from scripts.benchmark.client import Address

POLL_SECONDS = 0.02
STOP_SECONDS = 15.0
TICKS = os.sysconf("SC_CLK_TCK")


class ServerFailedError(Exception):
    """A server did not start, or left."""


@attrs.frozen
class Server:
    """How to start one server. `{port}` in the command is replaced."""

    name: str
    command: Sequence[str]
    model: str
    """What requests call it."""
    ready_path: str
    """Answers 200 once the server takes requests."""
    environment: Mapping[str, str] = attrs.field(factory=dict)
    start_seconds: float = 120.0


@attrs.frozen
class RunningServer:
    """A server that takes requests."""

    server: Server
    pid: int
    address: Address
    ready_seconds: float
    """From starting the command to the first 200."""

    def pids(self) -> list[int]:
        """The whole tree."""
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and (fields := stat_fields(int(entry.name))):
                children.setdefault(int(fields[1]), []).append(int(entry.name))
        found = [self.pid]
        for pid in found:  # grows while it is walked
            found += children.get(pid, [])
        return found

    def cpu_seconds(self) -> float:
        """Of all its processes, those that have ended among them."""
        return sum(cpu_seconds(pid) for pid in self.pids())

    def memory_bytes(self) -> int:
        """PSS of all its processes: what is shared between them counts once."""
        return sum(pss_bytes(pid) for pid in self.pids())


def stat_fields(pid: int) -> list[str]:
    """/proc/PID/stat after the name: state, parent, …; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and of its children that it has waited for."""
    return sum(map(int, stat_fields(pid)[11:15])) / TICKS


def pss_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


@contextlib.contextmanager
def open_server(server: Server, log: Path) -> Iterator[RunningServer]:
    """Start it on a free loopback port and wait until it is ready; stop the whole tree on leaving.

    Raises ServerFailedError with the end of its log.
    """
    address = Address("127.0.0.1", free_port())
    command = [part.replace("{port}", str(address.port)) for part in server.command]
    with log.open("ab") as output:
        began = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=os.environ | dict(server.environment),
        )
        try:
            await_ready(server, process, address, began + server.start_seconds, log)
            yield RunningServer(server, process.pid, address, time.perf_counter() - began)
        finally:
            stop(process)


def await_ready(server: Server, process: subprocess.Popen[bytes], address: Address, deadline: float, log: Path) -> None:
    while not is_ready(address, server.ready_path):
        try:
            process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if time.perf_counter() < deadline:
                continue
        tail = log.read_text(errors="replace")[-2000:]
        raise ServerFailedError(f"{server.name} did not get ready; the end of its log:\n{tail}")


def is_ready(address: Address, path: str) -> bool:
    try:
        with socket.create_connection((address.host, address.port), timeout=5) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            return connection.recv(64).startswith((b"HTTP/1.1 200", b"HTTP/1.0 200"))
    except OSError:
        return False


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the server; what is left of its session after a while, or when somebody is impatient, is killed."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
