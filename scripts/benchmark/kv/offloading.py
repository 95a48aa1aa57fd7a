"""The first token of a long prompt by where its keys and values are: nowhere yet, in the engine's pool, in the memory
of its connector, on the disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

from scripts.benchmark import servers
from scripts.benchmark.client import Call, Client
from scripts.benchmark.processes import RunningServer, Server, open_server
from scripts.benchmark.prompts import Prompts
from scripts.benchmark.report import aligned, number
from scripts.benchmark.statistics import Spread

BLOCK_SIZE = 16
CALL_SECONDS = 60.0


@attrs.frozen
class FirstTokens:
    """Of prompts that are all at one place."""

    where: str
    milliseconds: Sequence[float]
    cached_tokens: Sequence[int]
    """Of each prompt, by the server's count."""


def measure_offloading(
    model: str | None, name: str, checkpoint: Path, directory: Path, prompt_tokens: int, tries: int
) -> list[FirstTokens]:
    """`directory` is on the disk in question; what is written there is gone afterwards. Raises ServerFailedError and
    UnexpectedAnswerError."""
    prompts = Prompts(checkpoint, seed=7)
    texts = [prompts.make(prompt_tokens) for _ in range(tries)]
    # Room for one and a half of them, so that one prompt drives the one before last out.
    blocks = ["--num-gpu-blocks-override", str(3 * prompt_tokens // (2 * BLOCK_SIZE))]
    found = []
    with tempfile.TemporaryDirectory(prefix="bench-kv-", dir=directory) as place:
        offloading = [*blocks, "--kv-offloading-size", "1", "--kv-offloading-path", place]
        without = servers.trillm(model, name, blocks)
        with_ = servers.trillm(model, name, offloading)
        with _open_asked(without, prompts, prompt_tokens) as ask:
            found.append(_first_tokens("cold, without a connector", [ask(text) for text in texts]))
        with _open_asked(with_, prompts, prompt_tokens) as ask:
            cold, pool = [], []
            for text in texts:
                cold.append(ask(text))
                pool.append(ask(text))
            memory = []
            for text in texts:
                ask(prompts.make(prompt_tokens))
                memory.append(ask(text))
            found += [_first_tokens("cold", cold), _first_tokens("in the pool", pool)]
            found += [_first_tokens("in the connector's memory", memory)]
        drop_from_memory(Path(place))
        with _open_asked(with_, prompts, prompt_tokens) as ask:
            found.append(_first_tokens("on the disk, after a restart", [ask(text) for text in texts]))
    return found


@contextmanager
def _open_asked(server: Server, prompts: Prompts, prompt_tokens: int) -> Iterator[Callable[[str], Call]]:
    """Asks one prompt after the other for one token each. The first is not measured."""
    with tempfile.TemporaryDirectory() as directory, open_server(server, Path(directory) / "log") as running:
        _ask(running, prompts.make(prompt_tokens))
        yield lambda text: _ask(running, text)


def _ask(running: RunningServer, prompt: str) -> Call:
    call = Call(running.address, running.server.model, prompt, 1)
    client = Client()
    try:
        client.start(call)
        client.finish(CALL_SECONDS)
    finally:
        client.close()
    return call


def _first_tokens(where: str, calls: Sequence[Call]) -> FirstTokens:
    return FirstTokens(
        where, [1e3 * call.first_token_seconds for call in calls], [call.num_cached_tokens for call in calls]
    )


def drop_from_memory(directory: Path) -> None:
    """Have what is in these files read from the disk itself, as far as the system does as it is asked."""
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDWR)
            try:
                os.fsync(descriptor)  # only what is written is given up
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def offloading_table(found: Sequence[FirstTokens], prompt_tokens: int) -> str:
    """With how many times sooner than what is computed with a connector it is there."""
    cold = next(row for row in found if row.where == "cold")
    lines = [[f"first token of {prompt_tokens} tokens that are …", "ms", "lowest", "highest", "cold : this", "found"]]
    for row in found:
        spread = Spread.of(row.milliseconds)
        ratio = f"{Spread.of(cold.milliseconds).middle / spread.middle:.2f}×"
        share = sum(row.cached_tokens) / (prompt_tokens * len(row.cached_tokens))
        figures = [number(value) for value in (spread.middle, spread.low, spread.high)]
        lines.append([row.where, *figures, ratio, f"{share:.0%}"])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(aligned(line, widths) for line in lines)
