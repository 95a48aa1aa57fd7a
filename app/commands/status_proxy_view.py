"""How `trillm status` shows a proxy. Pure; used by app/commands/status_view.py."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from app.api_client.call_error import plain
from app.commands.status_proxy import ProxyServer
from app.counted import counted
from app.own_command import own_command


def proxy_headline(proxy: ProxyServer, place: str, state: tuple[str, str]) -> Text:
    """`state`: a word and its colour."""
    word, colour = state
    names = plain(", ".join(proxy.models[:3])) or "no model"
    text = Text.assemble((f"● {word}", f"bold {colour}"), "  ", (names, "bold"), f"  {place}\n")
    text.append(f"{_called(proxy)}: ask its servers for their status, each by\n", "dim")
    text.append(f"{own_command('status')} --base-url SERVER", "dim")
    if proxy.reason:
        text.append(f"\n{plain(proxy.reason)}", colour)
    return text


def proxy_figures(proxy: ProxyServer) -> list[RenderableType]:
    """Its servers, and how its answers came about."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in ("server", "for", "state", "requests"):
        table.add_column(column, justify="right" if column == "requests" else "left", no_wrap=column != "server")
    for server in proxy.servers:
        state = Text("resting", "yellow") if server.rests else Text("asked", "green")
        table.add_row(plain(server.url), plain(server.role), state, str(server.in_flight))
    told = [f"{number} {plain(way.replace('_', ' '))}" for way, number in proxy.answers.items() if number]
    return [table, Text(), Text.assemble(("answers ", "dim"), ", ".join(told) or "none yet")]


def proxy_line(proxy: ProxyServer, word: str) -> str:
    in_flight, resting = sum(one.in_flight for one in proxy.servers), sum(one.rests for one in proxy.servers)
    told = [word, _called(proxy), f"{counted(in_flight, 'request')} at {counted(len(proxy.servers), 'server')}"]
    if resting:
        told.append(f"{resting} resting")
    if proxy.reason:
        told.append(plain(proxy.reason))
    return ", ".join(told)


def _called(proxy: ProxyServer) -> str:
    return f"a proxy of trillm {plain(proxy.version)}".rstrip()
