"""How `trillm status` shows a reading. Pure; used by app/commands/status.py."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from app.api_client.call_error import plain
from app.commands.status_latency import medians, shown
from app.commands.status_proxy import ProxyServer
from app.commands.status_proxy_view import proxy_figures, proxy_headline, proxy_line
from app.commands.status_rates import Rates, sparkline
from app.commands.status_reading import OtherServer, Reading
from app.counted import counted
from app.house import House, HouseActor, HouseEngine

OK, WARN, BAD, DIM = "green", "yellow", "red", "dim"
DOWN = "down"
"""The phase between two incarnations."""
ONLY_BEFORE_READY = ("start", "import", "compile kernels", "warm up")
"""Phases that a ready actor has left: its next heartbeat says so."""
SILENT_SECONDS = 3.0
"""Actors say every second how they are."""


def view(reading: Reading, place: str, rates: Rates | None = None) -> RenderableType:
    """`rates` where there is more than one reading."""
    match reading:
        case House():
            parts: list[RenderableType] = [
                _headline(reading, place),
                Text(),
                _actors(reading.actors),
                Text(),
                _engines(reading.engines, rates),
                Text(),
                _requests(reading),
                *_latency(reading, rates),
            ]
        case OtherServer():
            parts = [_other_headline(reading, place), Text(), *_other_figures(reading)]
        case ProxyServer():
            parts = [proxy_headline(reading, place, _state(reading)), Text(), *proxy_figures(reading)]
    if rates is not None and rates.course:
        last = "" if rates.total is None else f" {rates.total:.0f}"
        parts.append(Text.assemble(("tokens/s ", DIM), (sparkline(rates.course), OK), last))
    return Group(*parts)


def line(reading: Reading, rates: Rates | None = None) -> str:
    """All of it in one line, for what is no terminal."""
    if isinstance(reading, ProxyServer):
        return proxy_line(reading, _state(reading)[0])
    if isinstance(reading, House):
        running = sum(engine.running for engine in reading.engines)
        waiting = sum(engine.waiting for engine in reading.engines)
        used = sum(engine.kv_blocks_used for engine in reading.engines)
        total = sum(engine.kv_blocks_total for engine in reading.engines)
        kv = used / total if total else 0.0
    else:
        running, waiting, kv = reading.running or 0, reading.waiting or 0, reading.kv_usage or 0.0
    told = [_state(reading)[0], f"{running} running", f"{waiting} waiting", f"KV {kv:.0%}"]
    if rates is not None and rates.total is not None:
        told.append(f"{rates.total:.0f} tokens/s")
    if reading.reason:
        told.append(plain(reading.reason))
    return ", ".join(told)


def duration(seconds: float) -> str:
    """As people say it, with two units at most."""
    whole = max(int(seconds), 0)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def count(number: float) -> str:
    """In at most four digits: 950, 12.3k, 4.56M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= limit:
            return f"{number / (1e3 if unit == 'k' else limit):.3g}{unit}"
    return f"{number:.0f}"


def _state(reading: Reading) -> tuple[str, str]:
    """A word and its colour."""
    if isinstance(reading, House):
        if not reading.alive:
            return "broken", BAD
        if reading.ready and reading.run_state.is_sleeping:
            return "asleep", WARN
        if reading.ready and reading.run_state.is_paused:
            return "paused", WARN
    return ("ready", OK) if reading.ready else ("not ready", BAD)


def _headline(house: House, place: str) -> Text:
    word, colour = _state(house)
    text = Text.assemble((f"● {word}", f"bold {colour}"), "  ", (plain(house.model.id), "bold"), f"  {place}\n")
    told = [f"trillm {plain(house.version)}", f"up {duration(house.now - house.started_at)}"]
    if house.model.max_model_len:
        told.append(f"context {count(house.model.max_model_len)} tokens")
    if house.model.adapters:
        told.append(counted(len(house.model.adapters), "adapter"))
    text.append(", ".join(told), DIM)
    for sentence in (house.reason, house.late):
        if sentence:
            text.append(f"\n{plain(sentence)}", BAD if not house.ready else WARN)
    return text


def _table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=column != "last end")
    return table


def _actors(actors: list[HouseActor]) -> Table:
    table = _table("actor", "state", "phase", "pid", "restarts", "last end", right=("pid", "restarts"))
    for actor in actors:
        restarts = Text(str(actor.restarts), WARN if actor.restarts else DIM)
        pid = "" if actor.pid is None else str(actor.pid)
        last = plain(actor.last_end or "")
        table.add_row(plain(actor.name), _actor_state(actor), _phase(actor), pid, restarts, Text(last, DIM))
    return table


def _actor_state(actor: HouseActor) -> Text:
    if actor.ready and actor.heartbeat_age >= SILENT_SECONDS:
        return Text(f"silent {duration(actor.heartbeat_age)}", BAD)
    if actor.ready:
        return Text("ready", OK)
    if _comes_later(actor):
        return Text("comes later", DIM)
    if actor.phase == DOWN and actor.last_end is None:
        return Text("not yet", BAD)  # it has not been started so far
    word = "down" if actor.phase == DOWN else "starting"
    return Text(word, BAD if actor.needed and word == "down" else WARN)


def _comes_later(actor: HouseActor) -> bool:
    """Nobody waits for it: a standby is used up by each restart."""
    return actor.phase == DOWN and not actor.needed and (actor.kind == "standby" or actor.last_end is None)


def _phase(actor: HouseActor) -> str:
    if _comes_later(actor):
        return ""
    if actor.ready and actor.phase in ONLY_BEFORE_READY:
        return "just started"
    phase = plain(actor.phase)
    if phase == DOWN:
        return f"for {duration(actor.phase_seconds)}"
    if not actor.ready and 0 < actor.progress < 1:
        return f"{phase} {actor.progress:.0%}"
    return phase if actor.ready else f"{phase} {duration(actor.phase_seconds)}"


def _engines(engines: list[HouseEngine], rates: Rates | None) -> Table:
    numbers = ("running", "waiting", "KV cache", "prefix hits", "prompt", "generated", "tokens/s")
    table = _table("engine", *(numbers if rates is not None else numbers[:-1]), right=numbers)
    for engine in engines:
        total = engine.kv_blocks_total
        row = [
            str(engine.index),
            str(engine.running),
            str(engine.waiting),
            f"{engine.kv_blocks_used / total:.0%} of {count(total * engine.block_size)}" if total else "",
            f"{engine.prefix_cache_hits / engine.prefix_cache_queries:.0%}" if engine.prefix_cache_queries else "",
            count(engine.prompt_tokens),
            count(engine.generation_tokens),
        ]
        if rates is not None:
            rate = rates.by_engine.get(engine.index)
            row.append("" if rate is None else f"{rate:.0f}")
        table.add_row(*row)
    return table


def _requests(house: House) -> Text:
    requests = house.requests
    told = [f"{requests.live} live"]
    for number, words in (
        (requests.replayed, "went on after a death"),
        (requests.condemned, "ended as the cause of deaths"),
        (requests.timeouts, "timed out"),
    ):
        if number:
            told.append(f"{number} {words}")
    return Text.assemble(("requests ", DIM), ", ".join(told))


def _latency(house: House, rates: Rates | None) -> list[RenderableType]:
    """Of the last readings; of all, if there was but one, or if nothing was measured since."""
    earlier = None if rates is None else rates.earlier
    recent = [] if earlier is None else medians(house.latency, earlier.latency)
    found = recent or medians(house.latency, None)
    if not found:
        return []
    since = f"in {duration(house.now - earlier.now)}" if recent and earlier is not None else "since the start"
    told = ", ".join(f"{name} {shown(seconds)}" for name, seconds in found)
    return [Text.assemble(("median ", DIM), told, (f" {since}", DIM))]


def _other_headline(server: OtherServer, place: str) -> Text:
    word, colour = _state(server)
    names = plain(", ".join(server.models[:3])) or "no model"
    text = Text.assemble((f"● {word}", f"bold {colour}"), "  ", (names, "bold"), f"  {place}\n")
    text.append("no trillm, or an older one: it has no /house, so this is what /health and /metrics tell", DIM)
    if server.reason:
        text.append(f"\n{server.reason}", BAD)
    return text


def _other_figures(server: OtherServer) -> list[RenderableType]:
    if server.running is None:
        return [Text("no metrics under vLLM's names", DIM)]
    numbers = ("running", "waiting", "KV cache", "generated")
    table = _table(*numbers, right=numbers)
    usage = "" if server.kv_usage is None else f"{server.kv_usage:.0%}"
    table.add_row(str(server.running), str(server.waiting or 0), usage, count(server.generation_tokens or 0))
    return [table]
