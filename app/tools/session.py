"""One session with one server of tools. A task of its own owns the connection; requests ask through this object.

The MCP package's transports have task groups, which cancel whoever is inside them when a connection breaks. Only the
owner is: whoever asks gets a ToolError and can tell it from being cancelled. An idle session costs no time: nothing
polls, and the end of idleness is the deadline of the owner's sleep.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, final

import anyio
import httpx2
import trio
from mcp import Client, MCPError
from mcp.client.session import ClientSession
from mcp_types import (
    CONNECTION_CLOSED,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    ToolListChangedNotification,
)

from app.tools.address import ToolAddress
from app.tools.bounded_http import CUT_OFF, NOT_SENT
from app.tools.error_reason import reason, tidy
from app.tools.mcp_tool import MAX_NAME_LENGTH, McpTool
from app.tools.request_headers import Headers
from app.tools.tool_error import ToolError
from app.tools.tool_pages import all_tools
from app.tools.transport import Connect, open_transport
from protocol.errors import TrillmError

logger = logging.getLogger("trillm.tools")

T = TypeVar("T")

LISTING_SECONDS = 60.0
"""A listing is asked for again when it is older: not every transport tells that it has changed."""
MAX_CALLS_AT_ONCE = 64
"""On one session; fewer than it may have connections, for want of which it would break. Others wait, and their time
runs."""
GOODBYE_SECONDS = 2.0
MAX_INSTRUCTIONS_LENGTH = 4096
SESSION_TERMINATED = "Session terminated"
"""What the package makes of a 404 to a session that there was: the server has forgotten it, and has run nothing."""
CLOSED = "Connection closed"
"""How the package says that there is no connection any more. Its code for that is any server's to use, and many do for
an error of one call."""
UNEXPECTED = "internal error; the server's log has it"
STREAM_ENDED = "SSE stream "
"""How it begins to say that the stream of one call's answer has ended without it."""
UNREADABLE = (ValueError, RuntimeError, OSError, anyio.BrokenResourceError, anyio.ClosedResourceError)
"""What the package raises for answers that are none, and without a connection."""
UNCONNECTED = (*UNREADABLE, MCPError, TrillmError, httpx2.HTTPError, httpx2.InvalidURL, anyio.EndOfStream)
"""What it raises besides where there will be no connection, or no longer."""
MAX_ABANDONED = 32
"""Calls that nobody waits for any longer. Over the older protocol each holds one of the session's connections until it
is answered, so another session is opened after so many."""


class OnProgress(Protocol):
    async def __call__(self, progress: float, total: float | None, message: str | None) -> None: ...


@final
class ToolSession:
    """`run` it in a task of its own, wait for `settled`, then ask. Once `is_over`, another one is needed."""

    def __init__(
        self, address: ToolAddress, headers: Headers, *, connect_seconds: float, idle_seconds: float,
        connect: Connect = open_transport,
    ) -> None:  # fmt: skip
        self.address = address
        self.settled = trio.Event()
        """It is connected, or never will be."""
        self.over = trio.Event()
        self.failure: str | None = None
        """Why it could not be connected, or ended. None: nobody needed it any longer."""
        self.was_connected = False
        self.server_name = ""
        """What the server calls itself."""
        self.instructions = ""
        """What it says of its tools together, for the model; cut at a length."""
        self._headers = headers
        self._connect_seconds = connect_seconds
        self._idle_seconds = idle_seconds
        self._connect = connect
        self._session: ClientSession | None = None
        self._life = trio.CancelScope()
        self._use = trio.CancelScope()
        """Within its life: what comes after is to take leave."""
        self._num_users = 0
        self._num_abandoned = 0
        self._is_worn = False
        """Whoever comes next needs another one; those who have asked may wait for their answers."""
        self._unused_since = -math.inf
        self._last_complaint: str | None = None
        self._tools: tuple[McpTool, ...] | None = None
        self._listed_at = -math.inf
        self._listing = trio.Lock()
        self._room = trio.CapacityLimiter(MAX_CALLS_AT_ONCE)

    @property
    def is_over(self) -> bool:
        """Or is about to be: nothing more can be asked."""
        return self.over.is_set() or self._life.cancel_called or self._use.cancel_called or self._is_worn

    @property
    def is_unused(self) -> bool:
        return self._num_users == 0

    @property
    def unused_since(self) -> float:
        """By trio's clock; meaningful while it is unused."""
        return self._unused_since

    async def run(self) -> None:
        """Owns the connection until it breaks, `end` is called, or nobody has asked anything for the idle time."""
        with trio.CancelScope(deadline=trio.current_time() + self._connect_seconds) as connecting, self._life:
            try:
                streams = self._connect(self.address, self._headers, self._complain, self.end)
                client = Client(
                    streams,
                    client_info=Implementation(name="trillm", version="1"),
                    message_handler=self._hear,
                    cache=None,
                )
                async with client:
                    connecting.deadline = math.inf
                    self._begin(client)
                    with self._use:
                        await trio.sleep_forever()
                    self._life.deadline = trio.current_time() + GOODBYE_SECONDS  # the server may be told
            except* UNCONNECTED as group:
                self.failure = self._last_complaint or reason(group)
            except* Exception as group:
                logger.error("the session with %s failed", self.address, exc_info=group)
                self.failure = UNEXPECTED
        if connecting.cancelled_caught and not self.was_connected:
            self.failure = f"no answer within {self._connect_seconds:g} s"
        self._finish()

    def end(self) -> None:
        """Whoever has asked gets a ToolError."""
        self._life.cancel()

    def leave(self) -> None:
        """The same for one that nobody uses and that works: its server is told."""
        self._use.cancel()

    def _begin(self, client: Client) -> None:
        self._session = client.session
        self.server_name = client.server_info.name if client.server_info else ""
        self.instructions = (client.instructions or "")[:MAX_INSTRUCTIONS_LENGTH]
        self.was_connected = True
        self._last_complaint = None
        self._rest()
        self.settled.set()

    def _finish(self) -> None:
        self._session = None
        if self.failure is None and (not self.was_connected or self._num_users):
            self.failure = self._last_complaint or "the connection has ended"
        self.over.set()
        self.settled.set()

    def _complain(self, text: str) -> None:
        self._last_complaint = text

    async def _hear(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._listed_at = -math.inf

    def _rest(self) -> None:
        self._unused_since = trio.current_time()
        if self._num_users == 0:
            self._use.deadline = self._unused_since + (0 if self._is_worn else self._idle_seconds)

    @contextmanager
    def used(self) -> Iterator[None]:
        """While it is, it does not end for being idle."""
        self._num_users += 1
        self._use.deadline = math.inf
        try:
            yield
        finally:
            self._num_users -= 1
            self._rest()

    async def list_tools(self, seconds: float) -> tuple[McpTool, ...]:
        """All pages. `seconds` are for waiting, too, until another one has asked in vain. Raises ToolError, also for
        more than our bounds."""
        what = "its list of tools"
        try:
            with trio.fail_after(seconds):
                async with self._listing:
                    if self._tools is None or trio.current_time() - self._listed_at > LISTING_SECONDS:
                        self._listed_at = trio.current_time()
                        self._tools = None
                        self._tools = await self._ask(all_tools, seconds, what)
                    return self._tools
        except trio.TooSlowError:
            raise self._late(what, seconds) from None

    async def call(
        self, name: str, arguments: dict[str, Any], seconds: float, on_progress: OnProgress | None = None
    ) -> CallToolResult:
        """Leaving it tells the server that nobody waits any longer. An answer with `is_error` is an answer.

        What the tool says it answers is not held against what it does: the schema is the server's, and checking
        against one that is made for it takes any time. Raises ToolError.
        """
        request = CallToolRequest(params=CallToolRequestParams(name=name, arguments=arguments))

        async def ask(session: ClientSession) -> CallToolResult:
            return await session.send_request(request, CallToolResult, progress_callback=on_progress)

        return await self._ask(ask, seconds, f"the tool {name[:MAX_NAME_LENGTH]!r}")

    async def _ask(self, ask: Callable[[ClientSession], Awaitable[T]], seconds: float, what: str) -> T:
        session = self._session
        if session is None:
            raise ToolError(f"the server is gone: {self.failure}", was_not_run=True)
        with self.used():
            try:
                with trio.fail_after(seconds):
                    async with self._room:
                        with self._counted():
                            return await ask(session)
            except trio.TooSlowError:
                raise self._late(what, seconds) from None
            except MCPError as error:
                raise await self._error(error, what) from error
            except UNREADABLE as error:
                raise ToolError(f"{what}: its answer cannot be read: {reason(error)}") from error
            except TrillmError:
                raise
            except Exception as error:  # whatever state this leaves the session in, nobody else's is touched
                logger.error("%s at %s failed", what, self.address, exc_info=error)
                self.end()
                raise ToolError(f"{what}: {UNEXPECTED}") from error

    @contextmanager
    def _counted(self) -> Iterator[None]:
        try:
            yield
        except trio.Cancelled:
            self._num_abandoned += 1
            self._is_worn = self._is_worn or self._num_abandoned >= MAX_ABANDONED
            raise

    def _late(self, what: str, seconds: float) -> ToolError:
        return ToolError(f"{what} did not answer within {seconds:g} s", timed_out=True)

    async def _error(self, error: MCPError, what: str) -> ToolError:
        if error.code == NOT_SENT:
            self._is_worn = True
            return ToolError(f"{what}: the server is gone: {tidy(error.message)}", was_not_run=True)
        if error.code == CUT_OFF:
            return ToolError(f"{what} was not answered whole: {tidy(error.message)}")
        if error.code == CONNECTION_CLOSED and error.message.startswith(STREAM_ENDED):
            return ToolError(f"{what}: the server is gone: {tidy(error.message)}")
        if error.code == CONNECTION_CLOSED and error.message == CLOSED:
            self.end()
            with trio.move_on_after(GOODBYE_SECONDS):
                await self.over.wait()  # its owner knows why
            why = self.failure or self._last_complaint or "the connection has ended"
            return ToolError(f"{what}: the server is gone: {why}")
        if error.message == SESSION_TERMINATED:
            self.end()
            return ToolError(f"{what}: the server has forgotten the session", was_not_run=True)
        complaint = f" ({self._last_complaint})" if self._last_complaint else ""
        return ToolError(f"{what}: {tidy(error.message)}{complaint}")
