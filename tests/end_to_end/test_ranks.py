"""An engine over ranks, as processes: what it says is what one process says, also when any of them dies."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import trio

from tests.end_to_end.test_several_engines import open_tiny, streams, until_both_serve
from tests.helpers.processes import is_gone
from tests.helpers.server import Server, open_process, open_server
from tests.helpers.tiny_checkpoints import make_checkpoint

pytestmark = pytest.mark.process

SHARED = "The quick brown fox jumps over the lazy dog. "
BODIES = [
    {"prompt": f"{SHARED * (1 + n % 3)}{n}", "max_tokens": 60, "temperature": n % 2, "seed": n, "ignore_eos": True}
    for n in range(8)
]
SMALL = ("--block-size", "4")
"""With 100 blocks: eight sequences of a hundred tokens do not fit, and some are put off and computed again."""
PREEMPTIONS = "num_preemptions_total"
WAYS = {
    "tp2": ("llama", ("-tp", "2")),
    "pp2": ("llama", ("-pp", "2")),
    "tp2_pp2": ("llama", ("-tp", "2", "-pp", "2")),
    "ep2": ("qwen3_moe", ("-tp", "2", "--enable-expert-parallel")),
}
KILLED = ("pp2", "tp2_pp2")
"""In these ways a rank is killed as well: the others wait for its messages and in sums. Each costs a start of all."""


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> dict[str, Path]:
    found = {}
    for kind in ("llama", "qwen3_moe"):
        found[kind] = tmp_path_factory.mktemp(kind)
        make_checkpoint(found[kind], kind)
    return found


@pytest.fixture(scope="module")
def said(checkpoints) -> Callable[[str], list[str]]:
    """What one process says, by the kind of model."""

    async def ask(kind: str) -> list[str]:
        async with open_tiny(checkpoints[kind], *SMALL) as server, streams(server, BODIES) as texts:
            pass
        return texts

    return cache(lambda kind: trio.run(ask, kind))


@pytest.fixture
def expected(said, way) -> list[str]:
    """Not in the test itself, whose time is bounded."""
    return said(WAYS[way][0])


async def until_successor(server: Server, name: str, pid: int) -> None:
    while server.children().get(name) in (None, pid):
        await trio.sleep(0.02)
    await server.until_ready()


@pytest.mark.parametrize("way", WAYS)
async def test_texts_are_those_of_one_process_also_when_a_rank_is_killed(checkpoints, expected, way):
    kind, flags = WAYS[way]
    async with open_tiny(checkpoints[kind], *SMALL, *flags) as server, server.client() as http:
        ranks = sorted(name for name in server.children() if name.startswith("rank-"))
        assert ranks == [f"rank-0.{rank}" for rank in range(1, 4 if way == "tp2_pp2" else 2)]
        async with streams(server, BODIES) as found:
            pass
        assert found == expected
        assert await server.gauge(PREEMPTIONS) > 0
        assert await server.gauge("prefix_cache_hits_total") > 0
        actors = [actor["name"] for actor in (await http.get("/ready")).json()["actors"]]
        assert actors[: 1 + len(ranks)] == ["engine-0", *ranks]
        assert "Traceback" not in "\n".join(server.log)
        if way not in KILLED:
            return
        victim = ranks[-1]
        old = server.children()
        async with streams(server, BODIES) as found:
            os.kill(old[victim], signal.SIGKILL)
            await until_successor(server, victim, old[victim])
        assert found == expected
        assert all(is_gone(old[name]) for name in ("engine-0", *ranks))
        await server.until_said(re.compile(rf"engine-0 ended: lost with {re.escape(victim)}, killed by SIGKILL"))
        assert "Traceback" not in "\n".join(server.log)


DUMMY = ("-tp", "2", "-pp", "2", "--dummy-step-seconds", "0.02")
"""Ranks that have nothing to compute: how they live and die costs no model."""
OTHER = [body | {"prompt": f"once {n}"} for n, body in enumerate(BODIES)]


async def test_a_rank_that_is_stopped_is_found_and_named_and_no_stream_is_lost(checkpoint):
    async with open_server(checkpoint, *DUMMY) as server, server.client() as http:
        async with streams(server, OTHER) as texts:
            pass
        old = server.children()
        async with streams(server, OTHER) as found:
            os.kill(old["engine-0"], signal.SIGSTOP)  # so that streams are under way until the rank is found
            os.kill(old["rank-0.2"], signal.SIGSTOP)
            with trio.fail_after(20):
                while "has not been heard of" not in (await http.get("/ready")).text:
                    await trio.sleep(0.05)
            await until_successor(server, "rank-0.2", old["rank-0.2"])
        assert found == texts
        assert all(is_gone(pid) for name, pid in old.items() if name.startswith(("engine", "rank")))
        await server.until_said(re.compile(r"engine-0 ended: .*it has not been heard of for 10 s"))


async def test_with_two_engines_the_ranks_of_one_are_no_concern_of_the_other(checkpoint):
    async with open_server(checkpoint, *DUMMY, "-dp", "2") as server, server.client() as http:
        await until_both_serve(server)
        old = server.children()
        assert {name for name in old if name.startswith("rank")} == {f"rank-{e}.{r}" for e in (0, 1) for r in (1, 2, 3)}
        async with streams(server, OTHER):
            os.kill(old["rank-1.2"], signal.SIGKILL)
            while "late" not in (await http.get("/ready")).json():
                await trio.sleep(0.005)
            assert (await http.post("/v1/completions", json=OTHER[0] | {"max_tokens": 1})).status_code == 200
        await until_both_serve(server)
        new = server.children()
        assert {name for name in new if new[name] != old.get(name)} == {"engine-1", "rank-1.1", "rank-1.2", "rank-1.3"}


async def test_sigterm_leaves_no_rank_behind(checkpoint):
    async with open_server(checkpoint, *DUMMY, "--shutdown-timeout", "0.2") as server:
        pids = server.children().values()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, server)
            while not await server.num_requests():
                await trio.sleep(0.01)
            server.signal(signal.SIGTERM)
            with trio.fail_after(15):
                assert await server.wait() == 0
        assert all(map(is_gone, pids))


async def ask(server: Server) -> None:
    async with server.client() as http:
        await http.post("/v1/completions", json=BODIES[0] | {"max_tokens": 2000})


async def test_what_does_not_divide_a_model_is_refused_before_any_process_starts(checkpoints):
    command = [sys.executable, "-m", "app.cli", "serve", str(checkpoints["llama"]), "--port", "0", "-tp", "4"]
    async with open_process(command) as server:
        assert await server.wait() == 1
        await server.until_silent()
    assert "--tensor-parallel-size 4 does not divide them; 1, 2 and 6 do" in server.log[-1]
    assert len(server.log) == 1
