"""The two streams of a connection with a server of tools, watched: what is heard has a pace and an end that is told,
and what is said gets through or ends the connection. Used by app/tools/transport.py.

The MCP package makes a task of each message that it hears, and waits for ever where one that it says is not taken.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self, final

import anyio
import trio
from mcp.client._transport import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCResponse

from app.tools.pace import Pace

Heard = SessionMessage | Exception

UNASKED_AT_ONCE, UNASKED_PER_SECOND = 1000, 100
"""Messages that answer nothing: progress, logs, requests."""
STUCK_SECONDS = 30.0
"""So long nothing that is said may be taken."""
SHORTEST_WAIT_SECONDS = 1.0
"""Even when it has not been for longer: by now it may be."""
STUCK = "it takes no more messages"


class _Closable:
    """Is closed with its context, and closes what it watches."""

    def __init__(self, watched: ReadStream[Heard] | WriteStream[SessionMessage]) -> None:
        self._watched = watched

    async def aclose(self) -> None:
        await self._watched.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


@final
class HeardStream(_Closable):
    """Calls `on_end` when it has ended. Answers are taken at once, other messages at a pace."""

    def __init__(self, stream: ReadStream[Heard], on_end: Callable[[], None]) -> None:
        super().__init__(stream)
        self._stream = stream
        self._on_end = on_end
        self._pace = Pace(UNASKED_AT_ONCE, UNASKED_PER_SECOND)

    async def receive(self) -> Heard:
        return await self._paced(await self._stream.receive())

    def __aiter__(self) -> HeardStream:
        return self

    async def __anext__(self) -> Heard:
        try:
            return await self._paced(await self._stream.__anext__())
        except StopAsyncIteration:
            self._on_end()
            raise

    async def _paced(self, heard: Heard) -> Heard:
        is_answer = isinstance(heard, SessionMessage) and isinstance(heard.message, JSONRPCResponse | JSONRPCError)
        if not is_answer and (seconds := self._pace.wait_for(1, trio.current_time())):
            await trio.sleep(seconds)
        return heard


@final
class SaidStream(_Closable):
    """Calls `on_stuck` when nothing has been taken for STUCK_SECONDS, although somebody had something to say."""

    def __init__(self, stream: WriteStream[SessionMessage], on_stuck: Callable[[], None]) -> None:
        super().__init__(stream)
        self._stream = stream
        self._on_stuck = on_stuck
        self._stuck_since: float | None = None

    async def send(self, item: SessionMessage) -> None:
        """Raises anyio.BrokenResourceError when it is stuck."""
        began = trio.current_time()
        if self._stuck_since is None:
            self._stuck_since = began
        while True:
            patience = max(self._stuck_since + STUCK_SECONDS, began + SHORTEST_WAIT_SECONDS)
            with trio.CancelScope(deadline=patience):
                await self._stream.send(item)
                self._stuck_since = None
                return
            if self._stuck_since is None:
                self._stuck_since = trio.current_time()  # another message was taken meanwhile
            elif trio.current_time() >= self._stuck_since + STUCK_SECONDS:
                self._on_stuck()
                raise anyio.BrokenResourceError
