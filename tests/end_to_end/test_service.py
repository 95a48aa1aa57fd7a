"""A real server under a service manager: what it says from start to stop, and who can read its secrets meanwhile."""

from __future__ import annotations

import os
import re
import signal
import stat
from pathlib import Path

import pytest
import trio

from tests.helpers.server import Server, open_server

pytestmark = pytest.mark.process

KEY = "sk-nobody-may-read-this"


async def until(listener: trio.socket.SocketType, name: str) -> dict[str, str]:
    """The next datagram that sets this variable."""
    while True:
        lines = (await listener.recv(4096)).decode().split("\n")
        told = dict(line.split("=", 1) for line in lines)
        if name in told:
            return told


def of_process(pid: int, name: str) -> bytes:
    return Path(f"/proc/{pid}/{name}").read_bytes()


async def test_a_service_manager_hears_of_its_life_and_its_end(checkpoint: Path, tmp_path: Path) -> None:
    with trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_DGRAM) as listener:
        await listener.bind(str(tmp_path / "notify"))
        manager = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        async with open_server(checkpoint, "--shutdown-timeout", "3", **manager) as server:
            assert (await until(listener, "READY"))["STATUS"] == "ready; 0 running, 0 waiting"
            for _ in range(3):
                await until(listener, "WATCHDOG")
            for pid in server.children().values():
                assert b"NOTIFY_SOCKET" not in of_process(pid, "environ")
            server.signal(signal.SIGTERM)
            assert int((await until(listener, "STOPPING"))["EXTEND_TIMEOUT_USEC"]) > 3_000_000
            assert await server.wait() == 0


def private_directories(server: Server) -> list[Path]:
    """Where this run's sockets lie."""
    places = [os.environ.get("XDG_RUNTIME_DIR"), os.environ.get("TMPDIR"), "/tmp", "/dev/shm"]
    return [found for place in places if place for found in Path(place).glob(f"trillm-{server.pid}-*")]


async def test_secrets_and_sockets_are_its_own_user_s_whatever_the_umask(checkpoint: Path) -> None:
    before = os.umask(0)
    try:
        async with open_server(checkpoint, VLLM_API_KEY=KEY, TRILLM_LOG_LEVEL="debug") as server:
            [directory] = set(private_directories(server))
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700
            async with server.client(headers={"Authorization": f"Bearer {KEY}"}) as http:
                answer = await http.post("/v1/completions", json={"prompt": "once", "max_tokens": 2})
                told = (await http.get("/metrics")).text + (await http.get("/ready")).text
            assert answer.status_code == 200
            async with server.client(headers={"Authorization": "Bearer sk-tried-in-vain"}) as http:
                refused = await http.post("/v1/completions", json={"prompt": "once"})
            assert refused.status_code == 401

            for pid in (server.pid, *server.children().values()):
                for name in ("cmdline", "comm"):
                    assert KEY.encode() not in of_process(pid, name)
                assert b"\nUmask:\t0022\n" in of_process(pid, "status")
    finally:
        os.umask(before)
    assert not re.search(f"{KEY}|sk-tried-in-vain", "\n".join(server.log) + told + refused.text)
    assert not directory.exists()
