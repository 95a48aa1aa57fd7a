"""Who listens where a server is to be told by its answers, and is sent no key."""

from __future__ import annotations

import msgspec
import pytest
import trio

from app.checkup.listener import Listener, find_listener
from app.settings import Settings
from tests.helpers.fake_upstreams import FakeUpstream, MemoryNetwork, Script, Talk, breaks_off, says_nothing
from tests.helpers.houses import house

MODELS = {"data": [{"id": "some/model"}]}


async def found(script: Script) -> Listener | None:
    server = FakeUpstream(script)
    async with trio.open_nursery() as nursery:
        network = MemoryNetwork({"127.0.0.1": server}, nursery)
        told = await find_listener(Settings(api_key=("secret",)), network)
        nursery.cancel_scope.cancel()
    assert not any(had.values("authorization") for had in server.had)
    return told


def answers(**by_path: tuple[int, object]) -> Script:
    async def answer(talk: Talk) -> None:
        status, body = by_path.get(talk.received.target.rpartition("/")[2], (404, {"detail": "Not Found"}))
        await talk.whole(body, status)

    return answer


@pytest.mark.parametrize(
    ("script", "listener"),
    [
        (
            answers(version=(200, {"version": "1.2.3"}), house=(200, msgspec.json.encode(house()))),
            Listener("trillm 1.2.3 with owner/dummy", is_trillm=True, has_models=True),
        ),
        (
            answers(version=(200, {"version": "1.2.3"}), house=(401, {}), models=(401, {})),
            Listener("trillm 1.2.3", is_trillm=True, has_models=True),
        ),
        (
            answers(version=(200, {"version": "0.32.0"}), models=(200, MODELS)),
            Listener("a server of some/model", has_models=True),
        ),
        (answers(models=(401, {})), Listener("a server of models that asks for a key", has_models=True)),
        (answers(), Listener("an HTTP server")),
        (answers(version=(200, b"<html>"), house=(200, b"["), models=(200, {"data": 3})), Listener("an HTTP server")),
        (answers(models=(200, {"data": [{"id": "\x1b[2J" + "x" * 500}]})), Listener("a server of [2J" + "x" * 85,
                                                                                   has_models=True)),
    ],
)  # fmt: skip
async def test_who_speaks_http_is_known_by_what_it_answers(script: Script, listener: Listener) -> None:
    assert await found(script) == listener


async def test_who_speaks_no_http_is_unknown() -> None:
    assert await found(breaks_off) is None


async def test_who_says_nothing_is_soon_given_up(autojump_clock: trio.testing.MockClock) -> None:
    assert await found(says_nothing) is None
    assert trio.current_time() < 6
