"""An engine whose ranks lie on two hosts, which are network namespaces of this machine."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.end_to_end.test_ranks import BODIES, SMALL
from tests.end_to_end.test_several_engines import open_tiny, streams
from tests.helpers.networks import Network, open_network
from tests.helpers.server import READY, Server, open_process
from tests.helpers.tiny_checkpoints import make_checkpoint

pytestmark = pytest.mark.process

TINY = ("--device", "cpu", "--dtype", "float32", "--threads", "1", "--num-gpu-blocks-override", "100", *SMALL)
DUMMY = ("--load-format", "dummy", "--dummy-step-seconds", "0.02")


@pytest.fixture
def network() -> Iterator[Network]:
    with open_network(2) as network:
        yield network


@pytest.fixture
def key(tmp_path) -> Path:
    path = tmp_path / "key"
    path.write_text("a key for tests, which nobody guesses, or so we hope\n")
    return path


def command(checkpoint: Path, key: Path, host: int, *flags: str) -> list[str]:
    own = ["--uds", str(key.parent / "socket")] if host == 0 else ["--headless"]
    hosts = ["--nnodes", "2", "--node-rank", str(host), "--master-addr", Network.address(0)]
    serve = [sys.executable, "-m", "app.cli", "serve", str(checkpoint)]
    return [*serve, "--node-key-file", str(key), *hosts, *own, *flags]


@asynccontextmanager
async def open_hosts(
    network: Network, checkpoint: Path, key: Path, *flags: str
) -> AsyncIterator[tuple[Server, Server]]:
    """Both, ready."""
    async with (
        open_process(network.command(0, command(checkpoint, key, 0, *flags))) as leading,
        open_process(network.command(1, command(checkpoint, key, 1, *flags))) as other,
    ):
        leading.url, leading.uds = "http://localhost", key.parent / "socket"
        await leading.until_said(READY)
        yield leading, other


async def test_two_hosts_say_what_one_says_also_when_one_was_cut_off(tmp_path, network, key):
    make_checkpoint(tmp_path / "model", "llama")
    async with open_tiny(tmp_path / "model", *SMALL) as server, streams(server, BODIES) as texts:
        pass
    async with open_hosts(network, tmp_path / "model", key, *TINY, "-tp", "2") as (leading, other):
        assert set(other.children()) == {"rank-0.1"}
        async with streams(leading, BODIES) as found:
            pass
        assert found == texts
        async with streams(leading, BODIES) as found:
            network.cut_off(1)
            await leading.until_said(re.compile("host 1 has not been heard of for 10 s"))
            await leading.until_said(re.compile("engine-0 ended: lost with rank-0.1, cut off with host 1"))
            await other.until_said(re.compile("host 0 has not been heard of for 10 s: its ranks here end"))
            assert not other.children()
            network.join(1)
        assert found == texts
