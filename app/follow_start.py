"""Keeps what is known of a start up to date, and logs it in a few lines. A task of each way to launch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import trio

from actors.handles import ActorState
from app.startup import Startup

POLL_SECONDS = 0.1

logger = logging.getLogger("trillm")


async def follow_start(startup: Startup, actors: Callable[[], Sequence[ActorState]], logs: bool = True) -> None:
    """Until it is over. Without `logs` nothing is logged: somebody else tells."""
    while not startup.is_over:
        startup.follow(actors())
        for line in startup.news():
            if logs:
                logger.info("%s", line)
        await trio.sleep(POLL_SECONDS)
