"""By NIXL: the reader's devices read from the owner's memory themselves, where they can. RDMA, and whatever else UCX
speaks. An option, for networks of the operator's own: UCX asks nobody for a password.

The owner says over the authenticated connection what its NIXL is; nothing else goes over that. Both sides need NIXL.
"""

from __future__ import annotations

import contextlib
import os
from typing import final

import trio

from actors.kv.conversation import Conversation
from actors.kv.lending import FetchError
from actors.kv.peer_messages import OpenAgent, OpenedAgent
from actors.kv.transports.nixl_agent import NixlAgent
from actors.kv.transports.nixl_messages import Agent
from actors.kv.transports.tcp import seconds_for
from actors.kv.transports.transport import NotStartedError, Reading

SHARE_OF_TIME = 0.9
"""Of that which a reading has at all: who leaves has to know that it was too slow."""
REST_SECONDS = 60.0
"""In which an owner that could not be read from is not tried again."""


def label() -> str:
    """`nixl`, and what UCX is confined to, if it is."""
    tls = os.environ.get("UCX_TLS")
    return f"nixl:{tls}" if tls else "nixl"


@final
class Nixl:
    is_local = False
    stops_at_once = False

    def __init__(self, agent: NixlAgent) -> None:
        self.name = label()
        self._agent = agent
        self._rests: dict[str, float] = {}
        """Owners that could not be read from, and until when they are left alone."""

    async def read(self, conversation: Conversation, reading: Reading) -> None:
        owner_id, now = conversation.facts.engine_id, trio.current_time()
        self._rests = {owner: until for owner, until in self._rests.items() if until > now}
        if self._agent.agent is None:
            raise NotStartedError("NIXL is being started again")
        if owner_id in self._rests:
            raise NotStartedError("the other connector could not be read from by NIXL a moment ago")
        owner = await self._open(conversation)
        try:
            with trio.fail_after(SHARE_OF_TIME * seconds_for(reading.num_bytes)):
                await self._agent.read(owner, reading.sources, reading.frames)
        except (FetchError, trio.TooSlowError) as error:
            self._rests[owner_id] = trio.current_time() + REST_SECONDS
            if isinstance(error, FetchError):
                raise
            raise FetchError("timeout", f"{len(reading.frames)} blocks did not come by NIXL in time") from None

    async def _open(self, conversation: Conversation) -> Agent:
        await conversation.tell(OpenAgent(conversation.number()))
        opened = await conversation.answer(OpenedAgent)
        if opened.agent is None:
            raise NotStartedError("the other connector has no NIXL that could be read from")
        return opened.agent

    async def settle(self) -> None:
        await self._agent.settle()


@final
class Opening:
    """The owner's half, of one connection: whether it is being read from."""

    def __init__(self, agent: NixlAgent | None) -> None:
        self._agent = agent
        self._until_closed = contextlib.ExitStack()

    def open(self, number: int) -> OpenedAgent:
        """Until `close`, it is."""
        self.close()
        if self._agent is None or self._agent.agent is None:
            return OpenedAgent(number, None)
        self._until_closed.enter_context(self._agent.being_read())
        return OpenedAgent(number, self._agent.agent)

    def close(self) -> None:
        """Idempotent."""
        self._until_closed.close()
