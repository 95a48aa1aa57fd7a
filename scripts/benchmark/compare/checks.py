"""What a reader must know before believing the figures: disturbances, failures, and what is not like with like."""

from __future__ import annotations

from collections.abc import Iterator

from scripts.benchmark.compare.results import Level, ModelResults, Results, ServerResults

QUIET_LOAD = 0.5
"""The load average for each core, up to which a machine counts as quiet before the first server starts."""
OTHERS_SHARE = 0.05
STOLEN_SHARE = 0.01
CLIENT_SHARE = 0.5
MEGAHERTZ_APART = 0.05


def disturbances(results: Results) -> list[str]:
    """What may have moved the figures; nothing if the machine was quiet."""
    return [*_of_the_machine(results), *_of_the_levels(results)]


def _of_the_machine(results: Results) -> Iterator[str]:
    state, cores = results.conditions, results.machine.cores
    if state.load_before > QUIET_LOAD * cores:
        yield f"The machine was not quiet before: load average {state.load_before:.2f} on {cores} cores."
    if state.stolen_share > STOLEN_SHARE:
        yield f"The hypervisor gave {state.stolen_share:.1%} of the cores' time to others."
    if state.megahertz_high > state.megahertz_low * (1 + MEGAHERTZ_APART):
        yield f"The cores ran at {state.megahertz_low:,.0f} to {state.megahertz_high:,.0f} MHz."
    if state.governor and state.governor != "performance":
        yield f"The cores' frequency was chosen by “{state.governor}”, not held high."


def _of_the_levels(results: Results) -> Iterator[str]:
    servers = [server for model in results.models for server in model.servers]
    others = {server.name: max((one.others_share for one in levels(server)), default=0.0) for server in servers}
    if disturbed := {name: share for name, share in others.items() if share > OTHERS_SHARE}:
        shares = ", ".join(f"{share:.0%} beside {name}" for name, share in disturbed.items())
        yield f"Other processes took up to this share of the cores' time: {shares}."
    for server in servers:
        if (share := max((one.client_share for one in levels(server)), default=0.0)) > CLIENT_SHARE:
            yield f"With {server.name} the client took up to {share:.0%} of a core, which the server lacked."


def failures(model: ModelResults) -> list[str]:
    """Requests that failed, servers that failed, and what was left out."""
    return [text for server in model.servers for text in _failures(server)]


def _failures(server: ServerResults) -> Iterator[str]:
    failed = [level for level in levels(server) if level.failures]
    if failed:
        number, of = sum(level.failures for level in failed), sum(level.requests for level in levels(server))
        yield f"{server.name}: {number} of {of} requests failed; the first with “{failed[0].failure[:200]}”."
    if server.trouble:
        state = "was not measured to the end" if server.turns else "has no figures"
        yield f"{server.name} {state}: {server.trouble}."
    for turn in server.turns:
        if turn.left_out:
            yield f"{server.name}, round {turn.round}: left out: {', '.join(turn.left_out)}."


def unlike(model: ModelResults) -> list[str]:
    """In what the servers do not do the same work."""
    told = []
    for server in model.servers:
        if "float32" in server.weights and "float32" not in model.servers[0].weights:
            told.append(
                f"{server.name} on CPUs reads no GGUF file and has {server.weights}: about six times the bytes for "
                "each token."
            )
        if "--enforce-eager" in server.command:
            told.append(f"{server.name} compiles nothing (--enforce-eager): it starts sooner and may decode slower.")
        if server.name == "llama.cpp" and "Q4_1" in server.weights:
            told.append(
                "llama.cpp's fastest format of four bits is Q4_0, not this model's Q4_1: with weights that are rounded "
                "a little differently it decodes about a third faster."
            )
    if len(model.servers) > 1:
        told.append(
            "Memory holds the room for keys and values: llama.cpp and vLLM take what their settings say (-c, "
            "VLLM_CPU_KVCACHE_SPACE) at start or as it is used, trillm as it is used."
        )
    return told


def levels(server: ServerResults) -> list[Level]:
    return [level for turn in server.turns for level in turn.levels]
