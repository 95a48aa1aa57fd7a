"""A comparison as results.md: tables, plots, the machine, and what is to be known before believing any of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from scripts.benchmark.compare.checks import disturbances, failures, unlike
from scripts.benchmark.compare.results import ModelResults, Results, ServerResults
from scripts.benchmark.compare.sections import Row, Section, at_a_glance, sections
from scripts.benchmark.report import number, text_of
from scripts.benchmark.statistics import Spread

NOTHING = "–"
TIME = "%Y-%m-%d %H:%M:%S %z"
"""As the conditions have it."""


def document(results: Results, plots: Sequence[str]) -> str:
    """All of results.md. `plots` are the names of those that were drawn, without their ending."""
    lines = [f"# {title(results)}", "", *about(results), ""]
    for model in results.models:
        folder = model_folder(results, model)
        if len(results.models) > 1:
            lines += [f"## {model.name}", ""]
        lines += ["### At a glance", "", *table(at_a_glance(results.plan), model.servers), ""]
        if "overview" in plots:
            lines += [f"![Throughput, latency, memory and start at a glance]({folder}overview.svg)", ""]
        for section in shown_sections(results, model):
            lines += [f"### {section.title}", "", *table(section, model.servers), ""]
            if section.plot in plots:
                lines += [f"![{section.title}]({folder}{section.plot}.svg)", ""]
            if section.plot == "throughput" and "latency_throughput" in plots:
                lines += [f"![Time of a request against throughput]({folder}latency_throughput.svg)", ""]
        lines += ["### Servers", "", *server_lines(model), ""]
        if found := [*failures(model), *unlike(model)]:
            lines += ["### To be known", "", *(f"- {text}" for text in found), ""]
    lines += ["## Conditions", "", *condition_lines(results)]
    return "\n".join(lines).rstrip() + "\n"


def summary(results: Results) -> str:
    """The tables alone, for a terminal."""
    lines = []
    for model in results.models:
        lines += [f"{model.name}, {machine_line(results)}", ""]
        for section in shown_sections(results, model):
            lines += [section.title, *table(section, model.servers), ""]
        lines += [*failures(model), *unlike(model)]
    lines += [f"{name} is not in this: {why}" for name, why in results.missing.items()]
    return "\n".join([*lines, *disturbances(results)]).rstrip()


def title(results: Results) -> str:
    names = list(dict.fromkeys(server.name for model in results.models for server in model.servers))
    first, *peers = names
    return f"{first} beside {' and '.join(peers)}" if peers else f"{first} alone"


def about(results: Results) -> Iterator[str]:
    plan = results.plan
    yield f"Made by `{' '.join(results.command_line)}`; [results.json](results.json) has all raw numbers."
    yield ""
    yield (
        f"Every server had the same prompts of {plan.prompt_tokens} tokens, no two of which begin alike, from the same "
        f"client, and answered with {plan.output_tokens} tokens (greedy, `ignore_eos`, streamed; the number is checked "
        "for each answer). As many requests as a row says were always under way: when one had ended, the next was "
        f"sent. One server ran at a time, started anew in each round, {rounds_text(results)}."
    )
    yield ""
    yield (
        "The figures are medians over the rounds, with the lowest and the highest. Ratios are taken within each round; "
        "**above 1 the first server is better**. “Between tokens” is between one piece of text and the next as they "
        "come over the socket. Memory and CPU are of all processes of a server."
    )


def rounds_text(results: Results) -> str:
    numbers = {len(server.turns) for model in results.models for server in model.servers if server.turns}
    most = max(numbers, default=0)
    fitted = f", as many as fitted into {results.plan.minutes:g} minutes" if ran_out_of_time(results, most) else ""
    return f"one round in all{fitted}" if most == 1 else f"{most} rounds in all{fitted}, each time another server first"


def ran_out_of_time(results: Results, rounds: int) -> bool:
    """Whether there are fewer than were asked for, and another one would have taken longer than there was time: else
    somebody has ended it."""
    if rounds >= results.plan.rounds:
        return False
    began, ended = (datetime.strptime(at, TIME) for at in (results.conditions.began, results.conditions.ended))
    left = 60 * results.plan.minutes * len(results.models) - (ended - began).total_seconds()
    turns = [turn for model in results.models for server in model.servers for turn in server.turns]
    return left < max((sum(turn.seconds for turn in turns if turn.round == n) for n in range(1, rounds + 1)), default=0)


def shown_sections(results: Results, model: ModelResults) -> list[Section]:
    found = sections(results.plan)
    return [section for section in found if any(row.by_round(one) for row in section.rows for one in model.servers)]


def table(section: Section, servers: Sequence[ServerResults]) -> list[str]:
    """In Markdown, with columns under one another so that it can be read as it is."""
    first, *peers = servers
    header = [section.head, *(server.name for server in servers), *(f"{first.name} : {peer.name}" for peer in peers)]
    rows = [cells(row, first, peers) for row in section.rows if any(row.by_round(server) for server in servers)]
    widths = [max(len(line[column]) for line in [header, *rows]) for column in range(len(header))]
    rule = ["-" * widths[0], *(f"{'-' * (width - 1)}:" for width in widths[1:])]
    return [_line(header, widths), "| " + " | ".join(rule) + " |", *(_line(row, widths) for row in rows)]


def cells(row: Row, first: ServerResults, peers: Sequence[ServerResults]) -> list[str]:
    figures = [text_of(row.spread(server)) for server in (first, *peers)]
    return [row.figure.title, *figures, *(ratio_text(row.ratio(first, peer)) for peer in peers)]


def ratio_text(ratio: Spread | None) -> str:
    if ratio is None:
        return NOTHING
    middle, low, high = (times_text(value) for value in (ratio.middle, ratio.low, ratio.high))
    return f"{middle}×" if low == high else f"{middle}× ({low}–{high})"


def times_text(value: float) -> str:
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 1.995 else f"{value:.2f}"


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = row
    parts = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))]
    return "| " + " | ".join(parts) + " |"


def server_lines(model: ModelResults) -> Iterator[str]:
    for server in model.servers:
        settings = [f"{name}={value}" for name, value in server.environment.items()]
        yield f"- **{server.name}** {server.version}, {server.weights}: `{' '.join([*settings, *server.command])}`"


def machine_line(results: Results) -> str:
    machine = results.machine
    memory = f"{machine.memory_bytes / 2**30:.0f} GiB"
    return f"{machine.processor}, {machine.cores} cores, {memory}, {results.conditions.began[:10]}"


def condition_lines(results: Results) -> Iterator[str]:
    machine, state = results.machine, results.conditions
    yield f"- {machine_line(results)}; {machine.system}; the processor has {', '.join(machine.features) or 'no SIMD'}"
    yield f"- from {state.began} to {state.ended}"
    yield f"- load average {state.load_before:.2f} before, {state.load_after:.2f} after (the benchmark's own load)"
    if state.megahertz_high:
        yield f"- {number(state.megahertz_low)} to {number(state.megahertz_high)} MHz as the system tells it"
    yield f"- {state.stolen_share:.1%} of the cores' time went to other virtual machines"
    for name, why in results.missing.items():
        yield f"- {name} is not in this: {why}"
    yield from (f"- **{text}**" for text in disturbances(results))


def model_folder(results: Results, model: ModelResults) -> str:
    """Where this model's plots are, relative to results.md: beside it if it is the only one."""
    if len(results.models) == 1:
        return ""
    return "".join(letter if letter.isalnum() or letter in "-._" else "-" for letter in model.name) + "/"
