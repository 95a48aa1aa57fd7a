"""Several hosts on this machine: network namespaces with an address each, on one switch, from which each can be cut.

They belong to a user namespace of the tests' own, so that it takes no privilege where the kernel permits those.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import final

import pytest

SECONDS = 10.0


@final
class Network:
    """Made by `open_network`. Its hosts have the addresses 10.77.0.1, .2 and so on; the outer world is not there."""

    def __init__(self, keeper: int, hosts: list[int]) -> None:
        """Process ids of those that keep the namespaces."""
        self._keeper = keeper
        self._hosts = hosts

    @staticmethod
    def address(host: int) -> str:
        return f"10.77.0.{host + 1}"

    def command(self, host: int, command: list[str]) -> list[str]:
        """To be run on that host."""
        return [*_within(self._hosts[host]), *command]

    def cut_off(self, host: int) -> None:
        """The cable is pulled at the switch: the host itself sees nothing."""
        _run(*_within(self._keeper), "ip", "link", "set", "dev", f"port{host}", "down")

    def join(self, host: int) -> None:
        _run(*_within(self._keeper), "ip", "link", "set", "dev", f"port{host}", "up")


@contextmanager
def open_network(num_hosts: int) -> Iterator[Network]:
    """Skips the test, and says so, where namespaces are not to be had."""
    with contextlib.ExitStack() as stack:
        try:
            keeper = stack.enter_context(_open_keeper(["unshare", "-rn"]))
            inside = _within(keeper)
            _run(*inside, "ip", "link", "add", "dev", "switch0", "type", "bridge")
            _run(*inside, "ip", "link", "set", "dev", "switch0", "up")
            hosts = []
            for host in range(num_hosts):
                hosts.append(pid := stack.enter_context(_open_keeper([*inside, "unshare", "-n"])))
                port = ["dev", f"port{host}"]
                _run(*inside, "ip", "link", "add", *port, "type", "veth", "peer", "name", "net0", "netns", str(pid))
                _run(*inside, "ip", "link", "set", *port, "master", "switch0", "up")
                _run(*_within(pid), "ip", "link", "set", "dev", "lo", "up")
                _run(*_within(pid), "ip", "addr", "add", f"{Network.address(host)}/24", "dev", "net0")
                _run(*_within(pid), "ip", "link", "set", "dev", "net0", "up")
        except (OSError, subprocess.CalledProcessError, TimeoutError) as error:
            pytest.skip(f"NOT TESTED: no network namespaces are to be had here ({error})")
        yield Network(keeper, hosts)


def _within(pid: int) -> list[str]:
    return ["nsenter", f"--target={pid}", "--user", "--net", "--preserve-credentials"]


@contextmanager
def _open_keeper(unshare: list[str]) -> Iterator[int]:
    """A process that does nothing but be in a new network namespace."""
    process = subprocess.Popen([*unshare, "sleep", "infinity"])
    try:
        until = time.monotonic() + SECONDS
        while Path(f"/proc/{process.pid}/comm").read_text() != "sleep\n":
            if process.poll() is not None or time.monotonic() > until:
                raise TimeoutError(f"{' '.join(unshare)} makes none")
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=SECONDS)
