"""What people are told of a start: on a terminal of a fixed width, and in lines."""

from __future__ import annotations

import io

import attrs
import pytest
from rich.console import Console, RenderableType
from rich.text import Text

from app.api_client.place import find_place
from app.live_screen import drawn, summarised
from app.own_command import own_command
from app.settings import Settings
from app.start_screen import LogScreen, Served, ready_line, served
from app.startup import Startup
from protocol.phases import IMPORT, LOAD
from tests.app.test_startup import Clock, an_actor


def shown(what: RenderableType, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(what)
    return [line.rstrip() for line in capture.get().splitlines()]


def a_start() -> tuple[Startup, Clock]:
    startup = Startup(clock := Clock())
    clock.now += 1
    startup.enter(IMPORT)
    clock.now += 0.01
    startup.enter(LOAD)
    return startup, clock


def test_it_shows_what_is_over_what_goes_on_and_who_is_late() -> None:
    startup, clock = a_start()
    clock.now += 2
    actors = [an_actor("engine-0", LOAD, progress=0.34, phase_seconds=2.0), an_actor("output-0", ready=True)]
    startup.follow([*actors, an_actor("standby-0"), an_actor("grammar-0")])

    first, second, third = shown(drawn(startup, Text("*")))
    assert first.split() == ["✓", "start", "1.0", "s"]
    assert second.split()[:3] == ["*", "load", "engine-0"]
    assert second.split()[-3:] == ["34%", "2.0", "s"]
    assert third.strip() == "1 of 2 processes ready: engine-0 load 34%"


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_many_actors_take_no_more_lines_than_one(width: int) -> None:
    startup, _ = a_start()
    startup.follow([an_actor(f"engine-{index}", LOAD) for index in range(64)])
    lines = shown(drawn(startup, Text("*")), width)
    assert len(lines) == 3
    assert all(len(line) <= width for line in lines)


LOCAL = Served("m", "http://127.0.0.1:8000", details="/models/m on cpu", in_short="q4_1 on the CPU")


def test_the_summary_says_where_it_is_and_what_to_do_next() -> None:
    startup, clock = a_start()
    clock.now += 2
    startup.finish()

    assert shown(summarised(startup, LOCAL)) == [
        "✓ m is ready after 3.0 s: start 1.0, load 2.0",
        "  Model    q4_1 on the CPU",
        "  API      http://127.0.0.1:8000/v1  (no API key is needed)",
        "  Console  http://127.0.0.1:8000/",
        f"  Try      {own_command('chat')}",
    ]


def test_one_that_listens_everywhere_is_told_at_an_address_that_can_be_asked_with_its_key() -> None:
    startup, _ = a_start()
    everywhere = attrs.evolve(LOCAL, url="http://0.0.0.0:9000", has_key=True)
    told = shown(summarised(startup, everywhere), 110)

    assert "  API      http://127.0.0.1:9000/v1  (an API key is needed; at this machine's other addresses, too)" in told
    command = everywhere.try_it
    assert command is not None
    assert find_place(base_url=command.split()[-1], environment={"VLLM_API_KEY": "mine"}).key == "mine"


def test_a_line_says_the_same() -> None:
    startup, clock = a_start()
    clock.now += 2
    startup.finish()
    assert ready_line(startup, LOCAL) == (
        "ready in 3.0 s: m at http://127.0.0.1:8000/v1, no API key is needed; console: http://127.0.0.1:8000/; "
        f"try: {own_command('chat')} (start 1.0, load 2.0)"
    )


@pytest.mark.parametrize(
    ("what", "api", "console", "try_it"),
    [
        (
            attrs.evolve(LOCAL, url="https://[::]:9000", root_path="/llm"),
            "https://[::1]:9000/llm/v1",
            "https://[::1]:9000/llm/",
            own_command("chat", "--base-url", "https://[::1]:9000/llm"),
        ),
        (
            attrs.evolve(LOCAL, url="http://0.0.0.0:8000", has_key=True),
            "http://127.0.0.1:8000/v1",
            "http://127.0.0.1:8000/",
            own_command("chat"),
        ),
        (attrs.evolve(LOCAL, has_console=False), "http://127.0.0.1:8000/v1", None, own_command("chat")),
        (attrs.evolve(LOCAL, url="unix:/run/a b"), "unix:/run/a b", None, own_command("chat", "--uds", "/run/a b")),
        (attrs.evolve(LOCAL, url=None), "", None, None),
    ],
)
def test_where_it_is_and_how_to_try_it(what: Served, api: str, console: str | None, try_it: str | None) -> None:
    assert (what.api, what.console, what.try_it) == (api, console, try_it)


def test_whether_a_key_is_needed_is_the_settings_affair() -> None:
    assert served(Settings(), "m", None).key == "no API key is needed"
    assert served(Settings(api_key=("k",)), "m", None).key == "an API key is needed"


def test_in_a_log_of_json_the_seconds_are_fields(caplog: pytest.LogCaptureFixture) -> None:
    startup, _ = a_start()
    startup.finish()
    with caplog.at_level("INFO", logger="trillm"):
        LogScreen().ready(startup, LOCAL)
    first, last = caplog.records
    assert first.getMessage() == "serving /models/m on cpu"
    assert vars(last)["phases"] == {"start": 1.0, "import": 0.01, "load": 0.0}
