"""Starting, and not starting: whatever goes wrong is one sentence and an exit status, never a traceback."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from pathlib import Path

import pytest
import trio

from tests.helpers.server import READY, open_process

pytestmark = pytest.mark.process

HYPERCORN = ("hypercorn", "--worker-class", "trio", "-w", "0", "--bind", "127.0.0.1:0", "app:create_app()")


async def said(*arguments: str, status: int = 1, **environment: str) -> str:
    """The one sentence with which it ends."""
    async with open_process([sys.executable, "-m", *arguments], **environment) as server:
        assert await server.wait() == status
        await server.until_silent()
        assert "Traceback" not in "\n".join(server.log)
        sentences = [line for line in server.log if line.startswith("trillm: ")]
        assert len(sentences) == 1, server.log
        return sentences[0]


async def test_an_address_that_is_taken(checkpoint: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        sentence = await said("app.cli", "serve", str(checkpoint), "--load-format", "dummy", "--port", str(port))

    assert f"cannot listen on 127.0.0.1:{port}: Address already in use; use another --port" in sentence


async def test_a_host_that_does_not_exist(checkpoint: Path) -> None:
    flags = ("--load-format", "dummy", "--host", "192.0.2.1", "--api-key", "k")

    assert "cannot listen on 192.0.2.1:8000" in await said("app.cli", "serve", str(checkpoint), *flags)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("TRILLM_PORT", "abc", "abc"),
        ("TRILLM_PORT", "70000", "--port must be from 0 to 65535"),
        ("TRILLM_API_SERVER_COUNT", "2", "runs one API server"),
        ("TRILLM_CONFIG", "/nonexistent/trillm.toml", "/nonexistent/trillm.toml"),
        ("TRILLM_CONFIG", __file__, "(TRILLM_CONFIG) cannot be read"),
        ("TRILLM_CONFIG", sys.executable, "(TRILLM_CONFIG) cannot be read"),
    ],
)
async def test_the_hypercorn_command_with_a_wrong_environment(name: str, value: str, text: str) -> None:
    assert text in await said(*HYPERCORN, **{name: value})


async def test_a_store_of_responses_where_none_can_be(checkpoint: Path, tmp_path: Path) -> None:
    flags = ("--load-format", "dummy", "--port", "0", "--responses-store-path", str(tmp_path))
    async with open_process([sys.executable, "-m", "app.cli", "serve", str(checkpoint), *flags]) as server:
        assert await server.wait() == 1
        await server.until_silent()
        told = [line for line in server.log if "ERROR" in line or "Traceback" in line]
        assert len(told) == 1
        assert f"--responses-store-path: the store of responses cannot be at {tmp_path}" in told[0]


NOT_OURS = '{"kv_ip": "192.0.2.1", "kv_port": 0}'
"""An address for examples, which no host has."""


@pytest.mark.parametrize("more", [(), ("--api-server-count", "2")], ids=["one API server", "two"])
async def test_kv_connectors_that_cannot_be_heard(checkpoint: Path, more: tuple[str, ...]) -> None:
    flags = ("--load-format", "dummy", "--port", "0", "--kv-transfer-config", NOT_OURS, *more)
    assert "kv_ip 192.0.2.1 is no address of this host" in await said("app.cli", "serve", str(checkpoint), *flags)


async def test_the_hypercorn_command_with_kv_connectors_that_cannot_be_heard(checkpoint: Path) -> None:
    environment = {"TRILLM_MODEL": str(checkpoint), "TRILLM_KV_TRANSFER_CONFIG": NOT_OURS}
    assert "kv_ip 192.0.2.1 is no address of this host" in await said(*HYPERCORN, **environment)


async def test_a_wrong_configuration_file() -> None:
    assert "(TRILLM_CONFIG) cannot be read" in await said("app.cli", "serve", status=2, TRILLM_CONFIG=__file__)


SLOW_IMPORT = """
import os, signal, sys, app.cli
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "app.launch":
            os.kill(os.getpid(), signal.SIGTERM)
            while True: signal.pause()
sys.meta_path.insert(0, Slow())
sys.argv = ["trillm", "serve", "--port", "0"]
app.cli.main()
"""


SLOW_ENTRY = """
import os, signal, sys, app.entry
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "app.cli":
            os.kill(os.getpid(), signal.SIGINT)
            while True: signal.pause()
sys.meta_path.insert(0, Slow())
app.entry.main()
"""


async def test_sigterm_while_it_still_imports_is_a_quiet_end() -> None:
    async with open_process([sys.executable, "-c", SLOW_IMPORT]) as server:
        assert await server.wait() == 0
        await server.until_silent()
        assert server.log == []


async def test_ctrl_c_while_it_still_imports_is_a_quiet_end() -> None:
    async with open_process([sys.executable, "-c", SLOW_ENTRY]) as server:
        assert await server.wait() == -signal.SIGINT
        await server.until_silent()
        assert server.log == []


async def test_sigterm_while_the_engine_starts_is_a_quiet_end(checkpoint: Path) -> None:
    command = [sys.executable, "-m", "app.cli", "serve", str(checkpoint), "--load-format", "dummy", "--port", "0"]
    async with open_process(command) as server:
        while not server.children():
            assert server.process.poll() is None
            await trio.sleep(0.01)
        server.signal(signal.SIGTERM)
        assert await server.wait() == 0
        await server.until_silent()
        assert "Traceback" not in "\n".join(server.log)


async def test_packages_of_others_where_it_is_started_are_not_taken_for_its_own(checkpoint, tmp_path) -> None:
    for name in ("actors", "gpu", "protocol"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('somebody else's')")
    command = [sys.executable, "-P", "-m", "app.cli", "serve", str(checkpoint), "--load-format", "dummy", "--port", "0"]
    async with open_process(command, where=tmp_path) as server:
        await server.until_said(READY)


async def test_all_processes_log_as_little_as_the_server_is_told_to(checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    flags = ("--load-format", "dummy", "--uds", str(path), "--api-server-count", "2", "--log-level", "error")
    async with open_process([sys.executable, "-m", "app.cli", "serve", str(checkpoint), *flags]) as server:
        server.url, server.uds = "http://localhost", path
        with trio.fail_after(30):
            while not path.exists():
                await trio.sleep(0.02)
            await server.until_ready()
        async with server.client() as http:
            await http.post("/v1/completions", json={"prompt": "a", "max_tokens": 3})
        assert not any(" INFO " in line or " WARNING " in line for line in server.log)
        os.kill(server.children()["engine-0"], signal.SIGKILL)
        await server.until_said(re.compile(r" ERROR trillm.supervisor: engine-0 ended: killed by SIGKILL"))
