"""A whole comparison: peers are found, every model has its course, and what is found is written as it comes."""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.benchmark.compare.budget import Budget
from scripts.benchmark.compare.contenders import Arguments, contenders
from scripts.benchmark.compare.course import Course
from scripts.benchmark.compare.peers import MissingPeerError, Peer, find_llama_cpp, find_vllm
from scripts.benchmark.compare.plan import Plan
from scripts.benchmark.compare.results import Conditions, Machine, ModelResults, Results, write_results
from scripts.benchmark.conditions import Moment, governor, memory_bytes, processor, processor_features

_PATH = re.compile(r"(?<![\w.~/:])(?:~\w*|\.{1,2})?(?:/[^\s/:,;'\"]+)+")
"""But neither a URL's nor one that begins below the working directory."""
FINDERS = {"llama.cpp": find_llama_cpp, "vllm": find_vllm}


def find_peers(peers: Sequence[Peer], given: Mapping[str, Path | None]) -> tuple[dict[str, Path], dict[str, str]]:
    """Where those are that were asked for, and why others were not found.

    Raises MissingPeerError if a flag names one that is not there.
    """
    found, missing = {}, {}
    for name, find in FINDERS.items():
        if name not in peers and given[name] is None:
            continue
        try:
            found[name] = find(given[name], os.environ)
        except MissingPeerError as error:
            if given[name] is not None:
                raise
            missing[name] = without_paths(str(error))
            say(f"{name} is not in this: {error}. `scripts/bench --help` says how to install it.")
    return found, missing


def carry_out(
    models: Sequence[str | None],
    found: Mapping[str, Path],
    arguments: Arguments,
    plan: Plan,
    results: Results,
    path: Path,
) -> None:
    """Fills the results, and writes them to the path after each turn. Raises CheckpointError."""
    before = Moment.now()

    def note() -> None:
        results.conditions = conditions_of(before, Moment.now())
        write_results(results, path)

    for model in models:
        budget = Budget(time.perf_counter() + 60 * plan.minutes)
        checkpoint, able, excluded = contenders(model, found.get("llama.cpp"), found.get("vllm"), plan.slots, arguments)
        results.missing |= {f"{peer} with {checkpoint.name}": why for peer, why in excluded.items()}
        servers = [contender.results() for contender in able]
        results.models.append(ModelResults(checkpoint.name, servers))
        say(f"{checkpoint.name}: {', '.join(f'{one.name} {one.version}' for one in servers)}; {plan.minutes:g} minutes")
        Course(plan, checkpoint.directory, able, servers, budget, say, note).run()
        note()


def command_line(arguments: Sequence[str]) -> list[str]:
    """As it can be shown to others."""
    shown = [Path(part).name if part.startswith(("/", "~")) else without_paths(part) for part in arguments]
    return ["scripts/bench", *shown]


def without_paths(text: str) -> str:
    """Of each path of this machine only the last part."""
    return _PATH.sub(lambda found: Path(found[0]).name, text)


def the_machine() -> Machine:
    return Machine(
        processor=processor(),
        features=processor_features(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=memory_bytes(),
        system=f"{platform.system()} {platform.release().split('-')[0]}, Python {platform.python_version()}",
    )


def conditions_of(before: Moment, after: Moment) -> Conditions:
    """What the machine did between two moments."""
    clocks = [*before.megahertz, *after.megahertz] or [0.0]
    return Conditions(
        began=before.at,
        ended=after.at,
        load_before=before.load,
        load_after=after.load,
        megahertz_low=min(clocks),
        megahertz_high=max(clocks),
        governor=governor(),
        stolen_share=after.stolen_share(before),
    )


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
