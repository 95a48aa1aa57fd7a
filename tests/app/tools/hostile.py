"""A server of tools in a few lines of HTTP, each of whose answers a test may replace. Speaks the older protocol."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

Answer = Callable[[dict[str, Any], Callable[..., Awaitable[None]]], Awaitable[None]]
"""(what was asked, send) to nothing: tells it all by itself."""

TOOLS = {"tools": [{"name": "any", "inputSchema": {"type": "object"}}]}
RESULT = {"content": [{"type": "text", "text": "here"}]}
ABOUT = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "odd", "version": "1"}}
EVENTS = b"text/event-stream"


class HostileServer:
    """`answers`: by JSON-RPC method, or HTTP method for what is no POST."""

    def __init__(self, **answers: Answer) -> None:
        self.answers = {name.replace("_", "/"): answer for name, answer in answers.items()}
        self.num_asked: dict[str, int] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
        asked = json.loads(body) if body else {}
        method = asked.get("method", "response") if scope["method"] == "POST" else scope["method"]
        self.num_asked[method] = self.num_asked.get(method, 0) + 1
        if method in self.answers:
            await self.answers[method](asked, send)
        elif scope["method"] != "POST":
            await tell(send, 405)
        elif "id" not in asked or method == "response":
            await tell(send, 202)
        else:
            await result(asked, send, {"initialize": ABOUT, "tools/list": TOOLS, "tools/call": RESULT}.get(method))


async def result(asked: dict[str, Any], send: Any, value: object) -> None:
    """None: there is no such method."""
    end = {"error": {"code": -32601, "message": "unknown"}} if value is None else {"result": value}
    await tell(send, 200, json.dumps({"jsonrpc": "2.0", "id": asked["id"], **end}).encode())


async def tell(
    send: Any, status: int, body: bytes = b"", kind: bytes = b"application/json", *headers: tuple[bytes, bytes]
) -> None:
    await begin(send, status, kind, *headers)
    await send({"type": "http.response.body", "body": body})


async def begin(send: Any, status: int, kind: bytes, *headers: tuple[bytes, bytes]) -> None:
    """What follows are `part`s."""
    all_headers = [(b"content-type", kind), (b"mcp-session-id", b"one"), *headers]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})


async def part(send: Any, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})
