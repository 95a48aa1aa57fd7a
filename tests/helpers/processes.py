"""Looking at other processes through /proc."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import trio

ENTRIES = (b"actors.child", b"app.api_process")
"""The modules that actors are started with."""


def is_gone(pid: int) -> bool:
    """Whether the process has ended; one that has ended and was not waited for yet counts as gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def is_stopped(pid: int) -> bool:
    """A child of ours, with all its threads, by a signal."""
    try:
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # it has ended, and was waited for
        return False


def child_processes(pid: int) -> list[int]:
    """That its main thread started, whatever they are."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def children(pid: int) -> dict[str, int]:
    """The actors that this process started, by name."""
    found = {}
    for child in child_processes(pid):
        try:
            arguments = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        for entry in ENTRIES:
            if entry in arguments:
                found[arguments[arguments.index(entry) + 1].decode()] = child
    return found


def owner_of_connection(client_port: int, processes: Mapping[str, int]) -> str | None:
    """Which of these processes has the other end of our TCP connection over IPv4; None if it is none of them."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[2].rpartition(":")[2], 16) == client_port and fields[9] != "0":
            return next((name for name, pid in processes.items() if has_socket(pid, fields[9])), None)
    return None


def has_socket(pid: int, inode: str) -> bool:
    try:
        return f"socket:[{inode}]" in {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:  # it has just ended, or closed one
        return False


def cpu_seconds(pid: int) -> float:
    """User and system time that the process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def is_asleep(pid: int) -> bool:
    """Whether its main thread waits for something."""
    return Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def resident_bytes(pid: int) -> int:
    """Of the process's memory, what is in the machine's."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


async def wait_until_gone(*pids: int) -> None:
    """To be bounded by the caller."""
    while not all(map(is_gone, pids)):
        await trio.sleep(0.01)


async def until_seen_asleep(pid: int, times: int = 20) -> None:
    """Until so many looks found it asleep: it does not spin, however slow the machine is. The caller sets a bound."""
    while times:
        times -= is_asleep(pid)
        await trio.sleep(0.01)
