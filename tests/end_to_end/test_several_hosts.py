"""An engine whose ranks lie on two hosts, which are network namespaces of this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.end_to_end.test_ranks import BODIES, OTHER, SMALL
from tests.end_to_end.test_several_engines import open_tiny, streams
from tests.helpers.networks import Network, open_network
from tests.helpers.processes import is_gone, wait_until_gone
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
        leading.url, leading.uds, leading.patience = "http://localhost", key.parent / "socket", 50.0
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


async def test_whoever_dies_on_another_host_is_named_and_no_stream_is_lost(checkpoint, network, key):
    flags = (*DUMMY, "-tp", "2", "-pp", "2")
    async with open_hosts(network, checkpoint, key, *flags) as (leading, other):
        ranks = [set(server.children()) - {"engine-0", "output-0"} for server in (leading, other)]
        assert ranks == [{"rank-0.1"}, {"rank-0.2", "rank-0.3"}]
        async with streams(leading, OTHER) as texts:
            pass

        old = other.children()
        async with streams(leading, OTHER) as found:
            os.kill(old["rank-0.3"], signal.SIGKILL)
            await leading.until_said(re.compile(r"engine-0 ended: lost with rank-0.3, killed by SIGKILL, on host 1"))
            await leading.until_ready()
        assert found == texts
        assert all(map(is_gone, old.values()))

        async with streams(leading, OTHER) as found:
            other.process.kill()
            await other.wait()
            again = network.command(1, command(checkpoint, key, 1, *flags))
            async with open_process(again) as successor:
                await leading.until_said(re.compile(r"engine-0 ended: lost with rank-0.[23], host 1 was started again"))
                await leading.until_ready()
                assert set(successor.children()) == {"rank-0.2", "rank-0.3"}
        assert found == texts


async def test_a_host_with_another_model_is_refused_and_one_that_fits_has_no_rank_left_at_the_end(
    checkpoint, tmp_path, network, key
):
    other_model = tmp_path / "other"
    shutil.copytree(checkpoint, other_model)
    config = json.loads((other_model / "config.json").read_text())
    (other_model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 77}))
    flags = (*DUMMY, "-tp", "2")
    async with open_process(network.command(0, command(checkpoint, key, 0, *flags))) as leading:
        await leading.until_said(re.compile("waiting for host 1 of 2 hosts, at 10.77.0.1:29501"))
        async with open_process(network.command(1, command(other_model, key, 1, *flags))) as other:
            assert await other.wait() == 1
            await other.until_silent()
            assert "host 0 refuses this one: its model has another config.json" in other.log[-1]
        async with open_process(network.command(1, command(checkpoint, key, 1, *flags))) as other:
            await leading.until_said(READY)
            rank = other.children()["rank-0.1"]
            leading.signal(signal.SIGTERM)
            assert await leading.wait() == 0
            with trio.fail_after(5):
                await wait_until_gone(rank)
            other.signal(signal.SIGTERM)
            assert await other.wait() == 0


async def test_torchrun_starts_one_server_on_each_host_and_the_first_one_serves(checkpoint, network, key):
    address = Network.address(0)
    where = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", address, "--master-port", "29500"]
    serve = ["-m", "app.cli", "serve", str(checkpoint), "--node-key-file", str(key), *DUMMY, "-tp", "2"]
    torchrun = [str(Path(sys.executable).with_name("torchrun")), *where, "--node-rank"]
    path = key.parent / "socket"
    async with (
        open_process(network.command(0, [*torchrun, "0", *serve, "--uds", str(path)])) as leading,
        open_process(network.command(1, [*torchrun, "1", *serve])) as other,
    ):
        try:
            await leading.until_said(READY)
            await other.until_said(re.compile("host 1 of 2 joins host 0 at 10.77.0.1:29501"))
            leading.url, leading.uds = "http://localhost", path
            async with leading.client() as http:
                reply = await http.post("/v1/completions", json={"prompt": "a", "max_tokens": 3})
            assert reply.json()["usage"]["completion_tokens"] == 3
        finally:
            for server in (leading, other):
                server.signal(signal.SIGTERM)  # killed, it would leave its server behind
            with trio.move_on_after(15, shield=True):
                await leading.wait()
                await other.wait()
