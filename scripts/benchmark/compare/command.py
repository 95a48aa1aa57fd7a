"""`scripts/bench` itself, and `scripts/bench report`, which makes table and plots of a results.json again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import attrs
import msgspec
from cyclopts import Parameter

from protocol.errors import CheckpointError
from scripts.benchmark.compare import markdown
from scripts.benchmark.compare.comparison import carry_out, command_line, conditions_of, find_peers, say, the_machine
from scripts.benchmark.compare.contenders import Arguments
from scripts.benchmark.compare.peers import PEERS, MissingPeerError, Peer
from scripts.benchmark.compare.plan import FULL, QUICK, Plan
from scripts.benchmark.compare.results import Results, as_written, read_results
from scripts.benchmark.conditions import Moment, refuse

DEFAULT_OUT = Path("build/bench")


def compare(
    *,
    peers: Annotated[list[Peer], Parameter(consume_multiple=True)] = list(PEERS),  # noqa: B006  only read
    models: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    concurrency: Annotated[list[int] | None, Parameter(consume_multiple=True)] = None,
    rounds: int | None = None,
    minutes: float | None = None,
    quick: Annotated[bool, Parameter(negative=())] = False,
    output_tokens: int | None = None,
    prompt_tokens: int | None = None,
    cold_starts: bool | None = None,
    llama_cpp: Path | None = None,
    vllm: Path | None = None,
    trillm_arguments: str = "",
    llama_cpp_arguments: str = "",
    vllm_arguments: str = "--enforce-eager",
    out: Path = DEFAULT_OUT,
) -> int:
    """Compare trillm with the peers that are installed: a table, plots, and all raw numbers.

    Parameters
    ----------
    peers
        Who else takes part: llama.cpp, vllm, or none.
    models
        As `trillm serve` takes them; the default model if none is given.
    concurrency
        Numbers of requests at once; 1 2 4 8 16, with --quick 1 4 16.
    rounds
        How often each server has its turn, as far as there is time; 3, with --quick 1.
    minutes
        How long all of it may take for a model; 15, with --quick 2. What does not fit is left out, and said.
    quick
        A first impression in two minutes: fewer and shorter requests, one round, no cold starts, no long prompts.
    output_tokens
        Of each request; 64, with --quick 32.
    prompt_tokens
        Of each request; 128.
    cold_starts
        Start each server once with its files not in memory, and once without what it cached in earlier starts.
    llama_cpp
        llama.cpp's llama-server; else the one that LLAMA_SERVER names, or in PATH.
    vllm
        The python of an environment with vLLM; else the one that VLLM_PYTHON names, or of the vllm in PATH.
    trillm_arguments
        More flags for `trillm serve`, as one text.
    llama_cpp_arguments
        More flags for llama-server.
    vllm_arguments
        More flags for `vllm serve`; by default it compiles nothing, which starts sooner.
    out
        The directory for results.md, results.json and the plots.
    """
    plan = the_plan(quick, concurrency, rounds, minutes, output_tokens, prompt_tokens, cold_starts)
    if (wrong := refusal(plan)) is not None:
        return refuse(wrong)
    try:
        found, missing = find_peers(peers, {"llama.cpp": llama_cpp, "vllm": vllm})
    except MissingPeerError as error:
        return refuse(str(error))
    if (wrong := make_directory(out)) is not None:
        return refuse(wrong)
    now = Moment.now()
    results = Results(command_line(sys.argv[1:]), the_machine(), conditions_of(now, now), plan.record(), [], missing)
    arguments = Arguments(trillm_arguments, llama_cpp_arguments, vllm_arguments)
    try:
        carry_out(models or [None], found, arguments, plan, results, out / "results.json")
    except CheckpointError as error:
        return refuse(str(error))
    except KeyboardInterrupt:
        say("interrupted: what was measured until now is in the results")
    if not has_servers(results):
        return refuse("nothing was measured, so there is no report")
    report_on(results, out)
    return 0 if all(server.turns for model in results.models for server in model.servers) else 1


def report(results: Path = DEFAULT_OUT / "results.json", /, *, out: Path | None = None) -> int:
    """Make results.md and the plots of a results.json again.

    Parameters
    ----------
    results
        The file.
    out
        Where to write them; beside it if this is not given.
    """
    try:
        found = read_results(results)
    except (OSError, msgspec.DecodeError) as error:
        return refuse(f"{results} cannot be read: {error}")
    if not has_servers(found):
        return refuse(f"{results} has no servers in it")
    directory = out or results.parent
    if (wrong := make_directory(directory)) is not None:
        return refuse(wrong)
    report_on(found, directory)
    return 0


def make_directory(out: Path) -> str | None:
    """Why it cannot be had."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"--out {out}: {error.strerror}"
    return None


def has_servers(results: Results) -> bool:
    return any(model.servers for model in results.models)


def report_on(results: Results, out: Path) -> None:
    """Writes table and plots, and shows the table."""
    results = as_written(results)
    plots: Sequence[str] = ()
    if find_spec("matplotlib") is None:
        say("no plots: they need matplotlib (scripts/install bench), then `scripts/bench report` draws them")
    elif any(server.turns for model in results.models for server in model.servers):
        from scripts.benchmark.compare.plots import draw_plots

        plots = draw_plots(results, out)
    (out / "results.md").write_text(markdown.document(results, plots))
    print(markdown.summary(results))
    say(f"results.md, results.json{' and the plots' if plots else ''} are in {out}")


def the_plan(
    quick: bool,
    concurrency: list[int] | None,
    rounds: int | None,
    minutes: float | None,
    output_tokens: int | None,
    prompt_tokens: int | None,
    cold_starts: bool | None,
) -> Plan:
    """What is given goes before what --quick or the default says."""
    given: dict[str, Any] = {
        "concurrency": None if concurrency is None else tuple(sorted(set(concurrency))),
        "rounds": rounds,
        "minutes": minutes,
        "output_tokens": output_tokens,
        "prompt_tokens": prompt_tokens,
        "cold_starts": cold_starts,
    }
    return attrs.evolve(QUICK if quick else FULL, **{name: value for name, value in given.items() if value is not None})


def refusal(plan: Plan) -> str | None:
    """Why a plan cannot be carried out."""
    bounds = {"concurrency": (1, 256), "rounds": (1, 100), "output-tokens": (2, 1024), "prompt-tokens": (8, 1000)}
    values = {
        "concurrency": [*plan.concurrency],
        "rounds": [plan.rounds],
        "output-tokens": [plan.output_tokens],
        "prompt-tokens": [plan.prompt_tokens],
    }
    for name, (low, high) in bounds.items():
        for value in values[name]:
            if not low <= value <= high:
                return f"--{name} must be from {low} to {high}, not {value}"
    if not plan.minutes > 0:
        return f"--minutes must be more than 0, not {plan.minutes:g}"
    return None
