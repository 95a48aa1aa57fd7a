"""The path from the engine to the socket alone: the dummy model's tokens, streamed through output handler and app.

With `step_seconds` the dummy engine paces itself, so that each token of a stream travels by itself; without, it goes
flat out, and what piles up at a process that is busy is merged.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import attrs

from scripts.benchmark.client import Call, Client
from scripts.benchmark.processes import TICKS, RunningServer, Server, cpu_seconds, open_server
from scripts.benchmark.prompts import Prompts

OUTPUT_TOKENS = 600
CALL_SECONDS = 240.0


@attrs.frozen
class FrontFigures:
    """What it took to carry some tokens."""

    streams: int
    step_seconds: float
    tokens_per_cpu_second: float
    """Of app and output handler together."""
    app_microseconds: float
    """CPU per token."""
    output_microseconds: float
    """CPU per token."""
    tokens_per_second: float
    tokens_per_event: float
    client_share: float
    """Of one core."""


def measure_front(checkpoint: Path, streams: list[int], step_seconds: list[float], log: Path) -> Iterator[FrontFigures]:
    """One server for each pace; each number of streams on it."""
    prompts = Prompts(checkpoint, seed=1)
    for pace in step_seconds:
        command = [sys.executable, "-m", "app.cli", "serve", str(checkpoint), "--port", "{port}"]
        command += ["--load-format", "dummy", "--dummy-step-seconds", str(pace), "--max-num-seqs", str(max(streams))]
        command += ["--max-num-batched-tokens", "2048", "--served-model-name", "dummy"]
        server = Server("trillm", command, "dummy", "/ready", {"TRILLM_LOG_LEVEL": "warning"})
        with open_server(server, log) as running:
            carry(running, prompts, 1, pace)
            for n in streams:
                yield carry(running, prompts, n, pace)


def carry(running: RunningServer, prompts: Prompts, streams: int, pace: float) -> FrontFigures:
    """Everything counts, the requests' own way in among it."""
    app, output = running.pid, child_named(running, "output")
    client = Client()
    calls = [Call(running.address, "dummy", prompts.make(16), OUTPUT_TOKENS) for _ in range(streams)]
    before = time.perf_counter(), cpu_seconds(app), cpu_seconds(output), time.process_time()
    try:
        for call in calls:
            client.start(call)
        client.finish(CALL_SECONDS)
    finally:
        client.close()
    after = time.perf_counter(), cpu_seconds(app), cpu_seconds(output), time.process_time()
    seconds, of_app, of_output, of_client = (late - early for early, late in zip(before, after, strict=True))
    tokens = sum(call.num_tokens for call in calls)
    return FrontFigures(
        streams=streams,
        step_seconds=pace,
        tokens_per_cpu_second=tokens / max(of_app + of_output, 1 / TICKS),
        app_microseconds=1e6 * of_app / tokens,
        output_microseconds=1e6 * of_output / tokens,
        tokens_per_second=tokens / seconds,
        tokens_per_event=tokens / sum(len(call.text_times) for call in calls),
        client_share=of_client / seconds,
    )


def child_named(running: RunningServer, name: str) -> int:
    """The process of the actor whose name begins so."""
    for pid in running.pids():
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"actors.child" in arguments and any(part.startswith(name.encode()) for part in arguments):
            return pid
    raise LookupError(f"no actor {name!r} among {running.pids()}")


def front_table(found: list[FrontFigures]) -> str:
    lines = [
        "streams  step ms  tok per CPU-s (app + output)  app µs/tok  output µs/tok    tok/s  tok/event  client core"
    ]
    lines += [
        f"{row.streams:7}  {1e3 * row.step_seconds:7.0f}  {row.tokens_per_cpu_second:28,.0f}"
        f"  {row.app_microseconds:10.1f}  {row.output_microseconds:13.1f}  {row.tokens_per_second:7,.0f}"
        f"  {row.tokens_per_event:9.1f}  {row.client_share:10.0%}"
        for row in found
    ]
    return "\n".join(lines)
