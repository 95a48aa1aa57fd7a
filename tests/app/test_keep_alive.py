"""A stream that has nothing to tell says so, before a proxy takes it for dead."""

from __future__ import annotations

from typing import Any

import attrs
import trio

from app.factory import create_app
from tests.helpers.app_under_test import AppUnderTest, make_app

COMMENT = ": keep-alive\n\n"


def app_with(seconds: float, **engine: Any) -> AppUnderTest:
    under_test = make_app(**engine)
    under_test.app = create_app(attrs.evolve(under_test.services, keep_alive_seconds=seconds))
    return under_test


async def stream_slowly(under_test: AppUnderTest, pauses: list[float], **fields: Any) -> str:
    """The stream's text; a delta comes after each of these pauses."""
    under_test.engine.hold()

    async def let_it_go_on() -> None:
        for seconds in pauses:
            await trio.sleep(seconds)
            under_test.engine.let()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(let_it_go_on)
        return (await under_test.chat(stream=True, max_tokens=len(pauses), **fields)).text


async def test_comments_come_while_nothing_else_does_and_change_nothing(autojump_clock: Any) -> None:
    told = await stream_slowly(app_with(2.0), [5.0, 0.5, 1.9, 4.1])
    undisturbed = await stream_slowly(app_with(100.0), [1.0] * 4)

    assert told.count(COMMENT) == 2 + 2
    assert told.startswith(COMMENT * 2 + "data: ")
    events = [event for event in told.split("\n\n") if event + "\n\n" != COMMENT]
    assert [event.partition("choices")[2] for event in events] == [
        event.partition("choices")[2] for event in undisturbed.split("\n\n")
    ]


async def test_deltas_that_are_held_back_are_nothing_to_tell(autojump_clock: Any) -> None:
    under_test = app_with(2.0, reply=lambda prompt, index: "😀")
    assert len(under_test.services.tokenizer.encode("😀", add_special_tokens=False)) == 4
    told = await stream_slowly(under_test, [1.5] * 4)

    role, *silence, text, _, _, _ = told.split("\n\n")  # the first delta tells the role, the second and third nothing
    assert '"role":"assistant"' in role
    assert silence == [COMMENT.strip()] * 2
    assert "😀" in text


async def test_without_an_interval_there_are_none(autojump_clock: Any) -> None:
    assert COMMENT not in await stream_slowly(make_app(), [14.0, 14.0])


async def test_usage_comes_unasked_if_the_operator_wants_it() -> None:
    under_test = make_app()
    under_test.app = create_app(attrs.evolve(under_test.services, force_include_usage=True))
    told = (await under_test.complete(stream=True, max_tokens=2)).text

    assert told.count('"completion_tokens":2') == 1
    assert told.count('"usage":null') == 2
