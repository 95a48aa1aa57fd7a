"""The API server as a process: what the app gives it to do, over the house that the supervisor tells it of.

The app's own process entry (app/api_process.py) brings `serve`: nothing of this package knows the app.
"""

from __future__ import annotations

from typing import NoReturn

import trio

from actors.api.remote_house import RemoteHouse
from actors.child import run_child
from actors.control import Control
from actors.handles import ServeApi
from protocol.codec import API_INPUT, HOUSE_INPUT, KeyedCodec
from protocol.links import open_links
from protocol.spec import ActorSpec, ApiFacts, ApiSpec


def run_api_process(serve: ServeApi) -> NoReturn:
    """`python -m app.api_process NAME PARENT_PID LOG_LEVEL LOG_STYLE`, from start to end: does not return."""

    async def run_actor(spec: ActorSpec, control: Control) -> None:
        assert isinstance(spec, ApiSpec), f"an API server cannot be a {type(spec).__name__}"
        with open_links() as links:
            inbox = links.pull(spec.inbox_address, KeyedCodec(API_INPUT, spec.key))
            supervisor = links.push(spec.house_address, KeyedCodec(HOUSE_INPUT, spec.key))
            house = RemoteHouse(spec.client_index, links, supervisor)

            control.pulse.enter("load")

            async def begin() -> None:
                control.pulse.enter("serve")
                await control.ready(ApiFacts())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(house.run, inbox)
                await serve(spec, house, begin)
                nursery.cancel_scope.cancel()

    run_child(run_actor)
