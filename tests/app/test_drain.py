"""A server that stops waits for nobody who is still sending."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from app.drain import Drain
from protocol.errors import UnavailableError
from tests.helpers.app_under_test import make_app
from tests.helpers.asgi import Exchange, http_scope


async def seven() -> int:
    await trio.lowlevel.checkpoint()
    return 7


async def test_what_comes_before_the_drain_is_passed_on() -> None:
    assert await Drain().unless_begun(seven) == 7


async def test_what_is_waited_for_when_it_begins_is_given_up() -> None:
    drain = Drain()
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(UnavailableError, match="shutting down"):
                await drain.unless_begun(trio.sleep_forever)

        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        drain.begin()
    with pytest.raises(UnavailableError):
        await drain.unless_begun(trio.sleep_forever)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
async def test_half_a_body_is_answered_at_once_and_a_running_answer_goes_on(path: str) -> None:
    under_test = make_app()
    under_test.engine.hold()
    headers = [(b"content-type", b"application/json")]
    half = Exchange(http_scope("POST", path, headers), b'{"prompt": "H', more_body=True)
    whole = Exchange(http_scope("POST", "/v1/completions", headers), b'{"prompt": "Hi", "max_tokens": 3}')
    async with trio.open_nursery() as nursery:
        nursery.start_soon(half.run, under_test.app)
        nursery.start_soon(whole.run, under_test.app)
        await wait_all_tasks_blocked()
        assert half.sent == []
        under_test.services.drain.begin()
        await wait_all_tasks_blocked()
        assert half.status == 503
        under_test.engine.let(3)
    assert whole.status == 200
