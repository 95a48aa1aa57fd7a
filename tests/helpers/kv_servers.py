"""Servers with KV connectors: what they say of their caches, and of what is left of anything."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import httpx
import trio

from tests.helpers.server import Server

MODEL = re.compile(r',?model_name="[^"]*"')
LINE = re.compile(r"^(\w+:\w+){([^}]*)} (\S+)$", re.MULTILINE)
STOPPED_SECONDS = 7.0
"""In which a request is through that waits for a connector which says nothing (EngineSpec.kv_seconds, and some)."""


@attrs.frozen
class Told:
    """An answer to a completion that was not streamed."""

    choices: list[tuple]
    """Text, reason of the end and log-probabilities of each."""
    num_cached: int
    """Prompt tokens that were not computed."""
    kv: dict[str, Any] | None = None
    """Its kv_transfer_params."""

    @property
    def text(self) -> str:
        return self.choices[0][0]


async def ask(http: httpx.AsyncClient, body: dict[str, Any], **headers: str) -> Told:
    reply = await http.post("/v1/completions", json=body, headers=headers)
    assert reply.status_code == 200, reply.text
    told = reply.json()
    choices = [(one["text"], one["finish_reason"], one["logprobs"]) for one in told["choices"]]
    cached = told["usage"]["prompt_tokens_details"]["cached_tokens"]
    return Told(choices, cached, told.get("kv_transfer_params"))


async def metrics(http: httpx.AsyncClient) -> dict[str, float]:
    """Every value that /metrics tells, by name and labels but for the model's."""
    text = (await http.get("/metrics")).text
    return {f"{name}{{{MODEL.sub('', labels)}}}": float(value) for name, labels, value in LINE.findall(text)}


async def until_told(server: Server, condition: Callable[[dict[str, float]], bool], seconds: float = 10) -> None:
    """Until /metrics tells of this, which it does about two seconds after it is so."""
    told: dict[str, float] = {}
    async with server.client() as http:
        with trio.move_on_after(seconds) as scope:
            while not condition(told := await metrics(http)):
                await trio.sleep(0.05)
    assert not scope.cancelled_caught, {name: value for name, value in told.items() if name.startswith("trillm:kv_")}


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 10) -> None:
    with trio.fail_after(seconds):
        while not await condition():
            await trio.sleep(0.02)


async def actors(http: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
    """What /ready tells of each; nothing while the service is not ready."""
    return {actor["name"]: actor for actor in (await http.get("/ready")).json().get("actors", [])}


async def until_restarted(server: Server, name: str, times: int = 1, seconds: float = 20) -> None:
    """Until it has died so often, and is there again."""
    async with server.client() as http:

        async def is_back() -> bool:
            actor = (await actors(http)).get(name)
            return actor is not None and actor["ready"] and actor["restarts"] >= times

        await until(is_back, seconds)


def frames(told: dict[str, float], engine: int = 0) -> dict[str, float]:
    """Of its connector's memory, by their states."""
    found = {}
    for name, value in told.items():
        if match := re.fullmatch(rf'trillm:kv_frames{{engine="{engine}",state="(\w+)"}}', name):
            found[match[1]] = value
    return found


def is_at_rest(told: dict[str, float], num_engines: int = 1) -> bool:
    """Nothing runs or waits, no lease is held, and every frame has a block or waits for one."""
    for engine in range(num_engines):
        of_engine = f'{{engine="{engine}"}}'
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        if any(told.get(name + of_engine) != 0 for name in (*names, "trillm:kv_leases")):
            return False
        state = frames(told, engine)
        if not state or any(state[name] for name in ("importing", "quarantined", "exported")):
            return False
    return True


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def mapped_windows(pid: int) -> int:
    """How many connectors' memories it has mapped."""
    return sum("memfd:trillm-kv-" in line for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
