"""The sessions with servers of tools that an API server has: one per address and headers, opened when it is needed.

A server that cannot be reached is let alone for a while, longer each time. Used by app/tools/servers.py.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar, final

import trio
from attrs import frozen
from mcp_types import CallToolResult

from app.tools.address import ToolAddress
from app.tools.mcp_tool import McpTool
from app.tools.request_headers import Headers
from app.tools.session import OnProgress, ToolSession
from app.tools.tool_error import ToolError
from app.tools.transport import Connect, open_transport
from protocol.log_lines import on_nobodys_behalf

T = TypeVar("T")
Key = tuple[ToolAddress, Headers]

LIST_SECONDS = 20.0
"""That a list of tools may take: no response begins before it is there."""
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
MAX_FAILURES = 1024
"""Addresses and headers that are remembered for having failed."""


@frozen
class Failure:
    """Of connecting."""

    reason: str
    pause: float
    """Seconds."""
    until: float
    """By trio's clock."""


@final
class ToolSessions:
    """`run` it while tools may be called."""

    def __init__(
        self,
        *,
        max_sessions: int = 256,
        max_sessions_of_one: int = 64,  # else one server that is slow would keep everybody from all others
        idle_seconds: float = 300.0,
        connect_seconds: float = 15.0,
        call_seconds: float = 60.0,
        connect: Connect = open_transport,
    ) -> None:
        self._max_sessions = max_sessions
        self._max_sessions_of_one = max_sessions_of_one
        self._idle_seconds = idle_seconds
        self._connect_seconds = connect_seconds
        self._call_seconds = call_seconds
        self._connect = connect
        self._sessions: dict[Key, ToolSession] = {}
        self._failures: dict[Key, Failure] = {}
        self._owners: trio.Nursery | None = None

    @property
    def num_open(self) -> int:
        return len(self._sessions)

    @property
    def num_connected(self) -> int:
        return sum(session.was_connected and not session.is_over for session in self._sessions.values())

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled, which closes every session. What a server does wrong ends its session only."""
        async with trio.open_nursery() as owners:
            self._owners = owners
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._owners = None

    async def list_tools(self, address: ToolAddress, headers: Headers) -> tuple[McpTool, ...]:
        """Raises ToolError."""
        seconds = min(self._call_seconds, LIST_SECONDS)
        return await self._with_session(address, headers, lambda session: session.list_tools(seconds))

    async def call(
        self,
        address: ToolAddress,
        headers: Headers,
        name: str,
        arguments: dict[str, Any],
        on_progress: OnProgress | None = None,
    ) -> CallToolResult:
        """Made at most once. Raises ToolError, also when it takes longer than --tool-timeout."""
        return await self._with_session(
            address, headers, lambda session: session.call(name, arguments, self._call_seconds, on_progress)
        )

    async def server_name(self, address: ToolAddress) -> str:
        """What the server calls itself. Raises ToolError."""

        async def name(session: ToolSession) -> str:
            return session.server_name

        return await self._with_session(address, (), name)

    def instructions(self, address: ToolAddress, headers: Headers) -> str:
        """What a server whose tools have been listed says of them together; mostly nothing."""
        session = self._sessions.get((address, headers))
        return "" if session is None else session.instructions

    async def _with_session(
        self, address: ToolAddress, headers: Headers, ask: Callable[[ToolSession], Awaitable[T]]
    ) -> T:
        """On a session that has been idle, the server may be another one by now, which has run nothing: once more."""
        session, was_new = await self._session((address, headers))
        try:
            return await ask(session)
        except ToolError as error:
            if was_new or not error.was_not_run:
                raise
        session, _ = await self._session((address, headers))
        return await ask(session)

    async def _session(self, key: Key) -> tuple[ToolSession, bool]:
        """A connected one, and whether it has just been opened. Raises ToolError."""
        session = self._sessions.get(key)
        was_new = session is None or session.is_over
        if session is None or session.is_over:
            session = self._open(key)
        await session.settled.wait()
        if not session.was_connected:
            raise ToolError(f"the server cannot be reached: {session.failure}", was_not_run=True)
        return session, was_new

    def _open(self, key: Key) -> ToolSession:
        now = trio.current_time()
        if (failure := self._failures.get(key)) is not None and now < failure.until:
            raise ToolError(
                f"the server cannot be reached: {failure.reason} (it is tried again in {failure.until - now:.1f} s)",
                was_not_run=True,
            )
        if self._owners is None:
            raise ToolError("the server is shutting down", was_not_run=True)
        if key not in self._sessions:
            of_one = [each for each in self._sessions if each[0].place == key[0].place]
            if len(of_one) >= self._max_sessions_of_one:
                self._make_room(of_one, f"{len(of_one)} sessions with that host or command")
            elif len(self._sessions) >= self._max_sessions:
                self._make_room(self._sessions, f"sessions with {len(self._sessions)} tool servers")
        session = ToolSession(
            *key, connect_seconds=self._connect_seconds, idle_seconds=self._idle_seconds, connect=self._connect
        )
        self._sessions[key] = session
        on_nobodys_behalf(self._owners.start_soon, self._own, key, session)
        return session

    def _make_room(self, among: Iterable[Key], what: str) -> None:
        """Raises ToolError if all are in use."""
        unused = [(self._sessions[key].unused_since, key) for key in among if self._sessions[key].is_unused]
        idle = [(since, key) for since, key in unused if since > -math.inf]  # the others are being connected
        if not idle:
            raise ToolError(f"{what} are open, which is the limit, and all are in use", was_not_run=True)
        _, key = min(idle, key=lambda each: each[0])
        self._sessions.pop(key).leave()

    async def _own(self, key: Key, session: ToolSession) -> None:
        await session.run()
        if self._sessions.get(key) is session:
            del self._sessions[key]
        if session.was_connected:
            self._failures.pop(key, None)
        elif session.failure is not None:
            self._remember(key, session.failure)

    def _remember(self, key: Key, reason: str) -> None:
        last = self._failures.pop(key, None)
        pause = min(LONGEST_PAUSE, 2 * last.pause) if last else FIRST_PAUSE
        if len(self._failures) >= MAX_FAILURES:
            del self._failures[next(iter(self._failures))]  # the oldest
        self._failures[key] = Failure(reason, pause, trio.current_time() + pause)
