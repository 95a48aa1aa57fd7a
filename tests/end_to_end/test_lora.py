"""Adapters from flags to answers, through real processes that die."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import trio

from tests.end_to_end.test_deaths import SLOW, answer
from tests.helpers.adapters import write_adapter
from tests.helpers.server import open_process, open_server

pytestmark = pytest.mark.process

BODY = {"prompt": "once", "max_tokens": 80, "ignore_eos": True, "temperature": 1, "seed": 5}


async def test_a_killed_engines_adapters_are_read_by_the_next_one_and_the_answers_are_the_same(checkpoint, tmp_path):
    names = ("one", "two", "three")
    modules = [f"{name}={write_adapter(tmp_path / name, seed=seed)}" for seed, name in enumerate(names)]
    bodies = [BODY | {"model": name} for name in (*names, checkpoint.name)]

    async def ask_all(got: list) -> None:
        async def ask(index: int) -> None:
            got[index] = await answer(server, bodies[index], stream=True)

        async with trio.open_nursery() as nursery:
            for index in range(len(bodies)):
                nursery.start_soon(ask, index)

    expected: list = [None] * len(bodies)
    got: list = [None] * len(bodies)
    async with open_server(checkpoint, *SLOW, "--lora-modules", *modules, "--max-loras", "2") as server:
        await ask_all(expected)
        assert len({json.dumps(one[0]) for one in expected}) == len(bodies)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_all, got)
            with trio.fail_after(20):
                while await server.num_requests() < len(bodies):
                    await trio.sleep(0.02)
            await trio.sleep(0.3)
            await server.kill("engine-0")
            await server.until_ready()
        assert got == expected


async def test_clients_load_and_unload_adapters_where_they_may(checkpoint, tmp_path):
    path = write_adapter(tmp_path / "allowed" / "one")
    flags = ("--enable-lora", "--allowed-lora-dirs", str(tmp_path / "allowed"))
    async with open_server(checkpoint, *flags, VLLM_ALLOW_RUNTIME_LORA_UPDATING="1") as server, server.client() as http:
        load = {"lora_name": "one", "lora_path": str(path)}
        assert (await http.post("/v1/load_lora_adapter", json=load)).status_code == 200
        reply = await http.post("/v1/completions", json=BODY | {"model": "one", "max_tokens": 5})
        assert reply.json()["model"] == "one"
        wrong = load | {"lora_name": "two", "lora_path": str(write_adapter(tmp_path / "allowed" / "two", rank=17))}
        reply = await http.post("/v1/load_lora_adapter", json=wrong)
        assert reply.status_code == 400
        assert "rank 17" in reply.json()["error"]["message"]
        assert (await http.post("/v1/unload_lora_adapter", json={"lora_name": "one"})).status_code == 200
        assert [model["id"] for model in (await http.get("/v1/models")).json()["data"]] == [checkpoint.name]


@pytest.mark.parametrize(("config", "reason"), [({"r": 99}, "rank 99"), (None, "no adapter_config.json")])
async def test_a_server_does_not_start_with_an_adapter_that_it_cannot_use(checkpoint: Path, tmp_path, config, reason):
    path = write_adapter(tmp_path / "one", **(config or {}))
    if config is None:
        (path / "adapter_config.json").unlink()
    module = json.dumps({"name": "one", "path": str(path)})
    async with open_server_that_ends(checkpoint, "--lora-modules", module) as server:
        assert await server.wait() == 1
        await server.until_silent()
        told = [line for line in server.log if reason in line]
        assert len(told) == 1
        assert "--lora-modules one" in told[0]


def open_server_that_ends(checkpoint: Path, *flags: str):
    """Of its own accord, with what was wrong."""
    command = [sys.executable, "-m", "app.cli", "serve", str(checkpoint), "--load-format", "dummy", "--port", "0"]
    return open_process([*command, *flags])
