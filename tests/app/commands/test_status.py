"""How a server is, as `trillm status` tells it."""

from __future__ import annotations

import io
import json
import re

import msgspec
import pytest
import trio
from rich.console import Console
from rich.live import Live

from app.api_client.call_error import NoAnswerError, RefusedError
from app.commands.status import watch_server
from app.commands.status_latency import between, quantile
from app.commands.status_proxy import ProxiedServer, ProxyServer
from app.commands.status_rates import Rates, sparkline
from app.commands.status_reading import OtherServer, Reading, read_server, with_figures
from app.commands.status_screen import InPlace, Lines, open_screen
from app.commands.status_view import count, duration, line, view
from app.house import HouseHistogram, HouseLatency, HouseRunState
from tests.helpers.asked_servers import lists_models, open_client
from tests.helpers.fake_upstreams import Talk
from tests.helpers.houses import NOTHING, actor, engine, house


def shown(reading: Reading, rates: Rates | None = None) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(view(reading, "http://here", rates))
    return console.file.getvalue()


def test_a_ready_house_is_told_in_a_screen() -> None:
    text = shown(house())
    assert "● ready  owner/dummy  http://here" in text
    assert "trillm 1.2.3, up 2 h 13 min, context 2048 tokens" in text
    assert "25% of 1600" in text
    assert "requests 4 live" in text
    assert len(text.splitlines()) < 24
    assert all(len(row) <= 80 for row in text.splitlines())


def test_what_is_wrong_is_told_with_its_reason() -> None:
    actors = [
        actor("app"),
        actor("engine-0", ready=False, phase="load", progress=0.45, restarts=2, last_end="killed by SIGKILL"),
        actor("output-0", ready=False, phase="down", phase_seconds=3.0, last_end="exit status 1"),
        actor("rank-0.1", ready=False, phase="down", phase_seconds=9.0),
        actor("standby-0", ready=False, phase="down", phase_seconds=9.0, needed=False, last_end="exit status 1"),
        actor("weights-0", phase="import"),
        actor("kv-0", heartbeat_age=4.0),
    ]
    text = shown(house(ready=False, reason="engine-0 is starting again", actors=actors))
    assert "● not ready" in text
    assert "engine-0 is starting again" in text
    assert "load 45%" in text
    assert "killed by SIGKILL" in text
    assert re.search(r"down +for 3 s .*exit status 1", text)
    assert re.search(r"rank-0.1 +not yet +for 9 s", text)
    assert re.search(r"standby-0 +comes later +4711", text)
    assert re.search(r"weights-0 +ready +just started", text)
    assert "silent 4 s" in text


def test_what_strangers_named_moves_no_terminal() -> None:
    said = shown(house(version="\x1b[31m1\u202e", actors=[actor("engine-0", last_end="\x1b[2J gone\u2066")]))
    assert not {"\x1b", "\u202e", "\u2066"} & set(said)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "ready"),
        ({"ready": False}, "not ready"),
        ({"ready": False, "alive": False}, "broken"),
        ({"run_state": HouseRunState(is_paused=True, is_sleeping=False, sleep_level=0)}, "paused"),
        ({"run_state": HouseRunState(is_paused=False, is_sleeping=True, sleep_level=1)}, "asleep"),
    ],
)
def test_the_first_word_says_whether_it_serves(changes: dict[str, object], word: str) -> None:
    assert line(house(**changes)).startswith(f"{word}, 3 running, 1 waiting, KV 25%")


def test_rates_are_differences_and_begin_anew_with_the_server() -> None:
    rates = Rates()
    rates.take(house(engines=[engine(generation_tokens=100)]), 10.0)
    assert rates.total is None
    rates.take(house(engines=[engine(generation_tokens=300)]), 12.0)
    assert rates.total == 100.0
    rates.take(house(engines=[engine(generation_tokens=5)]), 13.0)
    assert rates.total is None
    rates.miss()
    rates.take(house(engines=[engine(generation_tokens=50)]), 14.0)
    assert rates.total is None
    assert list(rates.course) == [100.0]


def test_the_course_of_rates_is_drawn() -> None:
    assert sparkline([0.0, 50.0, 100.0]) == "▁▅█"
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert sparkline([]) == ""


def measured(*counts: int) -> HouseLatency:
    some = HouseHistogram(bounds=[0.1, 0.2, 0.4], counts=list(counts), sum=0.0)
    return HouseLatency(ttft=some, itl=NOTHING, e2e=NOTHING)


def test_medians_are_of_what_was_measured_lately() -> None:
    rates = Rates()
    first = house(latency=measured(10, 0, 0, 0), now=8000.0)
    assert "median first token 50 ms since the start" in shown(first)
    rates.take(first, 1.0)
    later = house(latency=measured(10, 0, 6, 0), now=8003.0)
    rates.take(later, 4.0)
    assert "median first token 300 ms in 3 s" in shown(later, rates)
    rates.take(house(latency=measured(0, 1, 0, 0), started_at=8004.0), 5.0)
    assert rates.earlier is None


def test_what_was_hardly_or_never_measured_has_no_median() -> None:
    assert "median" not in shown(house(latency=measured(2, 0, 2, 0)))
    assert "median" in shown(house(latency=measured(2, 0, 3, 0)))
    assert quantile([0.1, 0.2], [0, 0, 0], 0.5) is None
    assert quantile([0.1, 0.2], [0, 0, 5], 0.5) == 0.2
    assert "median" not in shown(house())


def test_a_histogram_that_began_anew_counts_from_its_beginning() -> None:
    assert between(measured(1, 0, 0, 0).ttft, measured(3, 0, 0, 0).ttft) == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (7988, "2 h 13 min"), (200_000, "2 d 7 h")]
)
def test_durations_are_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (9999, "9999"), (12_345, "12.3k"), (131_072, "131k"), (4_560_000, "4.56M"), (2e9, "2G")],
)
def test_numbers_are_short(number: float, text: str) -> None:
    assert count(number) == text


METRICS = b"""\
vllm:num_requests_running{engine="0"} 2.0
vllm:num_requests_running{engine="1"} 3.0
vllm:num_requests_waiting{engine="0"} 0.0
vllm:kv_cache_usage_perc{engine="0"} 0.2
vllm:kv_cache_usage_perc{engine="1"} 0.4
vllm:generation_tokens_total{engine="0"} 7.0
"""


async def a_server_of_somebody_else_s(talk: Talk) -> None:
    match talk.received.target:
        case "/health":
            await talk.whole(b"")
        case "/v1/models":
            await lists_models(talk)
        case "/metrics":
            await talk.whole(METRICS)
        case _:
            await talk.whole({"detail": "Not Found"}, 404)


async def test_another_server_is_told_by_its_metrics() -> None:
    async with open_client(a_server_of_somebody_else_s) as (client, _):
        reading = await read_server(client)
    assert reading == OtherServer(
        ready=True,
        reason="",
        models=["first", "second"],
        running=5,
        waiting=0,
        kv_usage=pytest.approx(0.3),
        generation_tokens=7,
    )
    assert "it has no /house" in shown(reading)
    assert "30%" in shown(reading)


def test_what_is_no_number_is_no_figure() -> None:
    server = OtherServer(ready=True, reason="", models=[])
    text = "vllm:num_requests_running NaN\nvllm:num_requests_waiting +Inf\nvllm:kv_cache_usage_perc NaN\n"
    assert with_figures(server, text) == server


def test_figures_that_add_up_to_no_number_are_none() -> None:
    server = OtherServer(ready=True, reason="", models=[])
    text = "".join(
        f'vllm:num_requests_running{{engine="{number}"}} 1e308\nvllm:kv_cache_usage_perc{{engine="{number}"}} 1e308\n'
        for number in range(2)
    )
    assert with_figures(server, text) == msgspec.structs.replace(server, kv_usage=1e308)


PROXY_METRICS = b"""
# TYPE trillm:proxy_answers counter
trillm:proxy_answers_total{way="handed_over"} 5.0
trillm:proxy_answers_total{way="one_server"} 0.0
# TYPE trillm:proxy_requests_in_flight gauge
trillm:proxy_requests_in_flight{role="prefill",server="http://p"} 0.0
trillm:proxy_requests_in_flight{role="decode",server="http://d"} 2.0
# TYPE trillm:proxy_server_rests gauge
trillm:proxy_server_rests{role="prefill",server="http://p"} 1.0
trillm:proxy_server_rests{role="decode",server="http://d"} 0.0
"""


async def test_a_proxy_of_ours_is_told_with_its_servers() -> None:
    async def is_a_proxy(talk: Talk) -> None:
        match talk.received.target:
            case "/version":
                await talk.whole({"version": "1.2.3"})
            case "/metrics":
                await talk.whole(PROXY_METRICS)
            case _:
                await a_server_of_somebody_else_s(talk)

    async with open_client(is_a_proxy) as (client, _):
        reading = await read_server(client)
    assert reading == ProxyServer(
        ready=True,
        reason="",
        models=["first", "second"],
        version="1.2.3",
        servers=[
            ProxiedServer(url="http://p", role="prefill", rests=True),
            ProxiedServer(url="http://d", role="decode", in_flight=2),
        ],
        answers={"handed_over": 5, "one_server": 0},
    )
    rates = Rates()
    rates.take(reading, 1.0)
    text = shown(reading, rates)
    assert "a proxy of trillm 1.2.3: ask its servers for their status" in text
    assert re.search(r"http://p +prefill +resting +0\n", text)
    assert re.search(r"http://d +decode +asked +2\n", text)
    assert "answers 5 handed over\n" in text
    assert line(reading) == "ready, a proxy of trillm 1.2.3, 2 requests at 2 servers, 1 resting"


async def test_another_server_that_is_not_well_is_not_ready() -> None:
    async def is_ill(talk: Talk) -> None:
        await talk.whole({"error": {"message": "dead"}}, 503 if talk.received.target == "/health" else 404)

    async with open_client(is_ill) as (client, _):
        reading = await read_server(client)
    assert not reading.ready
    assert "dead" in reading.reason
    assert "no metrics" in shown(reading)


async def test_a_house_behind_a_key_is_not_taken_for_another_server() -> None:
    async def asks_for_a_key(talk: Talk) -> None:
        await talk.whole({"error": {"message": "no"}}, 401)

    async with open_client(asks_for_a_key) as (client, _):
        with pytest.raises(RefusedError, match="asks for a key"):
            await read_server(client)


async def test_a_house_that_cannot_be_read_is_told() -> None:
    async def newer(talk: Talk) -> None:
        await talk.whole({"object": "house", "version": 3})

    async with open_client(newer) as (client, _):
        with pytest.raises(NoAnswerError, match="/house answered what is not expected"):
            await read_server(client)


async def test_watching_goes_on_while_the_server_is_away(autojump_clock: trio.testing.MockClock) -> None:
    is_away = False

    async def tells(talk: Talk) -> None:
        await (talk.whole(b"", 503) if is_away else talk.whole(msgspec.json.encode(house())))

    out = io.StringIO()
    async with open_client(tells) as (client, _), trio.open_nursery() as nursery:
        nursery.start_soon(watch_server, client, Lines(out), 1.0)
        await trio.sleep(1.5)
        is_away = True
        await trio.sleep(2)
        is_away = False
        await trio.sleep(2)
        nursery.cancel_scope.cancel()
    state = "ready, 3 running, 1 waiting, KV 25%"
    silence = "http://server:8000 answered 503 without a reason"
    assert out.getvalue().splitlines() == [
        state,
        f"{state}, 0 tokens/s",
        f"no answer for 1 s: {silence}",
        f"no answer for 2 s: {silence}",
        state,
        f"{state}, 0 tokens/s",
    ]


def test_json_has_a_line_for_each_reading() -> None:
    out = io.StringIO()
    with open_screen(out, is_json=True, goes_on=True) as screen:
        screen.show(house(), "http://here")
        screen.show_silence(2.04, "gone")
    first, second = out.getvalue().splitlines()
    assert json.loads(first)["engines"][0]["running"] == 3
    assert json.loads(second) == {"error": "gone", "seconds": 2.0}


def test_a_terminal_keeps_the_last_reading_under_the_silence() -> None:
    console = Console(file=io.StringIO(), width=80, height=30, force_terminal=True, color_system=None)
    with Live(console=console, auto_refresh=False) as live:
        screen = InPlace(live)
        screen.show(house(), "http://here")
        screen.show_silence(3.0, "nothing listens")
    last = console.file.getvalue().rpartition("no answer for 3 s  nothing listens")[2]
    assert "owner/dummy" in last
