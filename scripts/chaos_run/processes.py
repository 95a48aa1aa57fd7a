"""The server's processes as /proc shows them: who its actors are, and what each of them holds.

Used to choose victims, and to see that afterwards nobody holds more than before.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path

import attrs

from scripts.benchmark.processes import stat_fields

DESCRIPTORS_OF_A_CHILD = 3
"""What its parent holds of a running child: its stdin, its stdout and a pidfd."""

PASSING = ("grammar", "standby")
"""Actors that come and go."""


@attrs.frozen
class Footprint:
    """What one process holds."""

    rss_bytes: int
    descriptors: int
    threads: int
    children: int

    def less_children(self) -> int:
        """Descriptors without those of its children, of which grammar checkers come and go."""
        return self.descriptors - DESCRIPTORS_OF_A_CHILD * self.children


def actors(server: int) -> dict[str, int]:
    """The server's actors by name, as pids. An actor that has ended but was not waited for yet is none. A standby that
    has become an engine is one by name as well."""
    found = {}
    for pid in children(server):
        words = read(f"/proc/{pid}/cmdline").split("\0")
        if "actors.child" in words and is_alive(pid):
            found[words[words.index("actors.child") + 1]] = pid
    return found


def children(pid: int) -> list[int]:
    return [int(child) for child in read(f"/proc/{pid}/task/{pid}/children").split()]


def zombies(server: int) -> list[int]:
    """Children that have ended and that the server has not waited for."""
    return [pid for pid in children(server) if stat_fields(pid)[:1] == ["Z"]]


def is_alive(pid: int) -> bool:
    return stat_fields(pid)[:1] not in ([], ["Z"], ["X"])


def footprint(pid: int) -> Footprint | None:
    """None if the process is gone."""
    status = dict(line.split(":", 1) for line in read(f"/proc/{pid}/status").splitlines() if ":" in line)
    try:
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        return Footprint(
            int(status["VmRSS"].split()[0]) * 1024, descriptors, int(status["Threads"]), len(children(pid))
        )
    except (FileNotFoundError, KeyError):
        return None


def footprints(server: int) -> dict[str, Footprint]:
    """Of the server and of those actors that are always there, by name."""
    lasting = {name: pid for name, pid in actors(server).items() if not name.startswith(PASSING)}
    pids = {"server": server} | lasting
    return {name: held for name, pid in pids.items() if (held := footprint(pid)) is not None}


def descriptor_kinds(pid: int) -> Counter[str]:
    """What its descriptors are: pipes, sockets, files by name."""
    found: Counter[str] = Counter()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found[os.readlink(entry).split(":[")[0]] += 1
    return found


def shared_memory() -> set[str]:
    """What lies in /dev/shm under our name."""
    try:
        return {name for name in os.listdir("/dev/shm") if "trillm" in name}
    except FileNotFoundError:
        return set()


def read(path: str) -> str:
    """Empty if the process is gone."""
    try:
        return Path(path).read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


@attrs.frozen
class Victim:
    """A process that may end and be replaced meanwhile: a signal reaches it or nobody."""

    name: str
    pid: int
    pidfd: int

    @classmethod
    def of(cls, name: str, pid: int) -> Victim | None:
        try:
            return cls(name, pid, os.pidfd_open(pid))
        except ProcessLookupError:
            return None

    def send(self, number: int) -> bool:
        """Whether it was there to get it."""
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except ProcessLookupError:
            return False
        return True

    def close(self) -> None:
        os.close(self.pidfd)
