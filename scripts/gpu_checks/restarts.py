"""A server whose engine is killed, and then one of its ranks: answers go on, each with all of its tokens."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import attrs
import msgspec
import torch
import trio

from protocol.parallel import ParallelSpec
from scripts.chaos_run import processes
from scripts.chaos_run.exchange import BrokenAnswerError, open_exchange
from scripts.chaos_run.served import Recipe, Served, ServedFailedError, open_served
from scripts.gpu_checks.numerics import Finding

TOKENS = 200
KILLED_AFTER = 40
"""Tokens."""
ANSWER_SECONDS = 180.0
"""Most of it is the restart of an engine."""


@attrs.frozen
class Heard:
    """One streamed answer."""

    token_ids: list[int]
    pause: float
    """The longest time between two of its events, in seconds."""


def check_restarts(checkpoint: Path, device: torch.device, parallel: ParallelSpec) -> Iterator[Finding]:
    yield from trio.run(_findings, checkpoint, device, parallel)


async def _findings(checkpoint: Path, device: torch.device, parallel: ParallelSpec) -> list[Finding]:
    victims = ["engine-0", *(["rank-0.1"] if parallel.world > 1 else [])]
    sizes = ["-tp", str(parallel.tensor), "-pp", str(parallel.pipeline), "--max-model-len", "512"]
    limits = ["--max-num-seqs", "4", "--num-gpu-blocks-override", "128", "--no-responses-store"]
    recipe = Recipe(str(checkpoint), real=True, arguments=["--device", device.type, *sizes, *limits])
    try:
        async with open_served(recipe) as served:
            with trio.fail_after(ANSWER_SECONDS):
                undisturbed = await _answer(served, None)
            return [await _finding(served, victim, undisturbed) for victim in victims]
    except (ServedFailedError, BrokenAnswerError, OSError, trio.TooSlowError) as error:
        return [Finding("a server to kill the engine of", float("nan"), 0.0, str(error) or repr(error))]


async def _finding(served: Served, victim: str, undisturbed: Heard) -> Finding:
    """The part of the tokens that is missing. Which ones they are a GPU may decide otherwise at a near-tie, since what
    was a step for each is then one for all."""
    name = f"an answer while {victim} is killed"
    try:
        with trio.fail_after(ANSWER_SECONDS):
            heard = await _answer(served, victim)
            await served.until_ready()
    except (ServedFailedError, BrokenAnswerError, OSError, trio.TooSlowError) as error:
        return Finding(name, float("nan"), 0.0, str(error) or repr(error))
    pairs = zip(heard.token_ids, undisturbed.token_ids, strict=False)
    same = next((place for place, (one, other) in enumerate(pairs) if one != other), TOKENS)
    kept = "the same tokens" if same == TOKENS else f"other tokens from the {same + 1}th on"
    missing = abs(len(undisturbed.token_ids) - len(heard.token_ids)) / TOKENS
    if same < KILLED_AFTER:
        return Finding(name, 1.0, 0.0, f"{kept}, before anything was killed")
    return Finding(name, missing, 0.0, f"{kept}, after {heard.pause:.1f} s")


async def _answer(served: Served, victim: str | None) -> Heard:
    """Raises BrokenAnswerError for one that is not whole."""
    token_ids: list[int] = []
    pause, heard = 0.0, trio.current_time()
    async for event in _events(served.port):
        now = trio.current_time()
        if token_ids:
            pause = max(pause, now - heard)
        heard = now
        for choice in event.get("choices", []):
            token_ids += choice.get("token_ids") or []
        if "error" in event:
            raise BrokenAnswerError(f"it ended with an error: {event['error']}")
        if victim is not None and len(token_ids) >= KILLED_AFTER:
            os.kill(processes.actors(served.pid)[victim], signal.SIGKILL)
            victim = None
    if len(token_ids) < TOKENS:
        raise BrokenAnswerError(f"it has {len(token_ids)} tokens, and {TOKENS} were asked for")
    return Heard(token_ids, pause)


async def _events(port: int) -> AsyncIterator[dict[str, Any]]:
    body = {
        "prompt": "What a GPU computes",
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    async with open_exchange(port) as exchange:
        await exchange.send("POST", "/v1/completions", body)
        rest = b""
        while not exchange.ended:
            *lines, rest = (rest + await exchange.receive()).split(b"\n")
            for line in lines:
                if line.startswith(b"data: {"):
                    yield msgspec.json.decode(line.removeprefix(b"data: "))
        if exchange.status != 200:
            raise BrokenAnswerError(f"status {exchange.status}: {rest[:300]!r}")
