"""Speaks ASGI to an application by hand, for what an HTTP client library would not send or not show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import trio
from attrs import define, field


@define(eq=False)
class Exchange:
    """One request to an ASGI application. `send_hook` runs before each of its messages is taken."""

    scope: dict[str, Any]
    body: bytes = b""
    disconnected: trio.Event = field(factory=trio.Event)
    sent: list[dict[str, Any]] = field(factory=list)
    num_received: int = 0
    blocked: trio.Event | None = None
    """If set, sending waits for it: a client that does not read."""
    more_body: bool = False
    """The rest of the body never comes."""

    async def run(self, app: Any) -> None:
        await app(self.scope, self.receive, self.send)

    async def receive(self) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        self.num_received += 1
        if self.num_received == 1 and self.scope["type"] == "http":
            return {"type": "http.request", "body": self.body, "more_body": self.more_body}
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        await trio.lowlevel.checkpoint()
        if self.blocked is not None:
            await self.blocked.wait()
        self.sent.append(message)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def data(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


def http_scope(
    method: str, path: str, headers: Iterable[tuple[bytes, bytes]] = (), root_path: str = "", **more: Any
) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(errors="surrogateescape"),
        "query_string": b"",
        "root_path": root_path,
        "headers": list(headers),
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "state": {},
        "extensions": {},
        **more,
    }
