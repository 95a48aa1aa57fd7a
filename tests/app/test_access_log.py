"""One line for each request when it is over, whatever it was and however it ended."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from app.access_log import printable, route_name
from app.factory import create_app
from protocol.errors import UnavailableError
from protocol.log_lines import LineFormatter, LogStyle
from tests.helpers.app_under_test import AppUnderTest, make_app
from tests.helpers.asgi import Exchange, http_scope

COMPLETIONS = "/v1/completions"
HEADERS = [(b"content-type", b"application/json"), (b"authorization", b"Bearer of-tidings")]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    caplog.set_level("INFO", logger="trillm.access")
    return Lines(caplog)


class Lines(list[str]):
    """Of the access log so far."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def __iter__(self) -> Iterator[str]:
        return (record.getMessage() for record in self._caplog.records if record.name == "trillm.access")

    def only(self) -> str:
        [line] = self
        return line


async def leave(under_test: AppUnderTest, body: dict[str, Any], after: int = 0) -> None:
    """Ask, and go away after so many tokens."""
    under_test.engine.hold()
    exchange = Exchange(http_scope("POST", COMPLETIONS, HEADERS), json.dumps(body).encode())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.run, under_test.app)
        await wait_all_tasks_blocked()
        for _ in range(after):
            under_test.engine.let()
            await wait_all_tasks_blocked()
        exchange.disconnected.set()


@pytest.mark.parametrize("stream", [True, False])
async def test_each_request_is_a_line_with_both_ids_and_what_it_took(lines: Lines, stream: bool) -> None:
    body = json.dumps({"prompt": [5, 6, 7], "max_tokens": 4, "n": 2, "stream": stream}).encode()
    reply = await make_app().send("POST", COMPLETIONS, body, X_Request_Id="mine")

    found = re.fullmatch(
        r'mine (cmpl-\w{32}) "POST /v1/completions" 200 model=owner/dummy tokens=3\+8 finish=length '
        r"first_byte=\d+\.\d{3} seconds=\d+\.\d{3} bytes=(\d+) end=done",
        lines.only(),
    )
    assert found is not None
    assert found[1] in reply.text
    assert int(found[2]) == len(reply.data)


async def test_a_request_id_of_the_body_is_the_line_s_too(lines: Lines) -> None:
    await make_app().complete(request_id="mine", max_tokens=1)

    assert lines.only().startswith("mine cmpl-")


async def test_times_are_those_of_the_first_byte_and_of_the_end(lines: Lines, autojump_clock: Any) -> None:
    under_test = make_app()
    under_test.engine.hold()

    async def let_it_go_on() -> None:
        for _ in range(3):
            await trio.sleep(1.5)
            under_test.engine.let()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(let_it_go_on)
        await under_test.complete(max_tokens=3, stream=True)

    assert "first_byte=1.500 seconds=4.500 " in lines.only()


async def test_a_client_that_leaves_is_told_of(lines: Lines) -> None:
    await leave(make_app(), {"prompt": "Hi"})

    assert " 499 model=owner/dummy tokens=" in lines.only()
    assert lines.only().endswith("bytes=0 end=client left")


async def test_one_that_leaves_its_stream_before_its_first_event_has_had_no_answer(lines: Lines) -> None:
    under_test = make_app()
    await leave(under_test, {"prompt": "Hi", "stream": True})

    assert " 499 model=owner/dummy tokens=" in lines.only()
    assert lines.only().endswith("bytes=0 end=client left")
    page = (await under_test.get("/metrics")).text
    assert 'http_requests_total{handler="/v1/completions",method="POST",status="4xx"} 1.0' in page


async def test_one_that_leaves_its_stream_later_has_had_a_part_of_it(lines: Lines) -> None:
    await leave(make_app(), {"prompt": "Hi", "stream": True}, after=1)

    assert " 200 model=owner/dummy tokens=" in lines.only()
    assert re.search(r" bytes=[1-9]\d* end=client left$", lines.only())


async def test_what_the_server_itself_cuts_off_is_not_the_client_s_doing(lines: Lines) -> None:
    under_test = make_app()
    under_test.engine.hold()
    exchange = Exchange(http_scope("POST", COMPLETIONS, HEADERS), b'{"prompt": "Hi", "stream": true}')
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.run, under_test.app)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()

    assert lines.only().endswith("end=cut off")


async def test_a_stream_that_ended_with_an_error_says_so_though_its_status_was_200(lines: Lines) -> None:
    await make_app(dies_after=1).complete(max_tokens=4, stream=True)

    assert re.search(r" 200 model=owner/dummy tokens=\d\+1 .* end=error \w+$", lines.only())


async def test_refusals_are_lines_wherever_they_come_from(lines: Lines) -> None:
    await make_app(refusal=UnavailableError("full")).complete()
    await make_app(api_keys=("secret",)).complete()
    await make_app().get("/nowhere")
    found = [re.sub(r"^\S+ \S+ ", "", line).split(" model=")[0] for line in lines]

    assert found == ['"POST /v1/completions" 503', '"POST /v1/completions" 401', '"GET /nowhere" 404']


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/ping", "/load"])
async def test_what_machines_ask_every_few_seconds_is_no_line(lines: Lines, path: str) -> None:
    await make_app().get(path)

    assert list(lines) == []


async def test_it_can_be_turned_off(lines: Lines) -> None:
    under_test = make_app()
    under_test.app = create_app(attrs.evolve(under_test.services, logs_access=False))
    await under_test.complete(max_tokens=2)

    assert list(lines) == []


async def test_nothing_secret_and_nothing_that_breaks_a_line_is_told(lines: Lines) -> None:
    scope = http_scope("GET", '/v1/a\n2026 "x" \x1b[31m', [*HEADERS, (b"x-request-id", b'two "words"')])
    scope["query_string"] = b"token=hidden"
    await Exchange(scope).run(make_app().app)
    line = lines.only()

    assert line.isprintable()
    assert '"GET /v1/a\\n2026 \\x22x\\x22 \\x1b[31m" 404' in line
    assert not any(word in line for word in ("tidings", "hidden", "two"))


def test_long_paths_are_cut() -> None:
    assert printable("/" + "a" * 5000) == "/" + "a" * 199 + "…"
    assert printable("/\udc80é\\") == "/\\udc80é\\\\"


@pytest.mark.parametrize(
    ("rule", "name"), [("/v1/models/<path:name>", "/v1/models/{name}"), ("/a/<b>/<int:c>", "/a/{b}/{c}"), ("/", "/")]
)
def test_routes_are_named_with_braces(rule: str, name: str) -> None:
    assert route_name(rule) == name


async def test_whatever_is_logged_for_a_request_has_its_names(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="trillm.access")
    caplog.handler.setFormatter(LineFormatter(LogStyle.JSON))
    under_test = make_app(dies_after=0)
    reply = await under_test.send(
        "POST", COMPLETIONS, json.dumps({"prompt": "a", "max_tokens": 2}).encode(), X_Request_Id="mine"
    )
    told = [json.loads(line) for line in caplog.text.splitlines()]

    assert reply.status_code == 500
    assert {line["logger"] for line in told} == {"trillm.access", "trillm.http"}
    assert {line["request_id"] for line in told} == {"mine"}
    assert len({line["answer_id"] for line in told}) == 1
    assert told[-1]["status"] == 500
