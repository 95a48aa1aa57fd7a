"""One line and one set of counts for each HTTP request, when it is over: outermost, so that refusals at the door and
clients who leave are told too. A response that runs on in the background has another line, when that is over.

What is inside only the application knows (the route, the answer's id, tokens, an error within a stream), and it notes
that in the Access that travels in the request's scope. Told are neither headers nor bodies nor query strings.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from typing import cast, final

import trio
from attrs import define, evolve, field
from hypercorn.typing import (
    ASGIFramework,
    ASGIReceiveCallable,
    ASGIReceiveEvent,
    ASGISendCallable,
    ASGISendEvent,
    HTTPScope,
    Scope,
)
from quart import Request

from app.http_metrics import HttpMetrics
from app.request_label import HEADER, request_label
from protocol.ids import RequestId
from protocol.log_lines import REQUEST

log = logging.getLogger("trillm.access")

_KEY = "trillm.access"
BACKGROUND = "BACKGROUND"
"""Told as the method of what went on after its request."""
CLIENT_LEFT = 499
"""Told as the status of a request whose client left before it had anything of an answer; nginx's word for it."""
LEFT = "client left"
QUIET_PATHS = frozenset({"/health", "/ready", "/metrics", "/ping", "/load", "/house", "/console/{name}"})
"""Asked every few seconds by machines and open pages: counted, but no line each."""
UNMEASURED = QUIET_PATHS | {"/version"}
"""Routes that vLLM leaves out of http_*: they are many and quick, and would make means look good."""
MAX_PATH = 200
MAX_TOLD = 32
"""Of the engines' requests."""
_PARAMETER = re.compile(r"<(?:[^:<>]+:)?([^<>]+)>")


@define(eq=False)
class Access:
    """One HTTP request."""

    label: str
    """The client's X-Request-Id, or one of our own."""
    method: str
    path: str
    began: float
    """On trio's clock, like the other times."""
    handler: str = "none"
    """The route, as http_requests_total names it."""
    answer_id: str = "-"
    """The id in the answer's body."""
    model: str = "-"
    """The served name that was asked for: the model's, or an adapter's."""
    num_prompt_tokens: int = 0
    num_tokens: int = 0
    finish: str = "-"
    """The finish reasons of its choices."""
    trace_id: str = "-"
    """Of the trace that it is part of, if there are traces."""
    work: object | None = None
    """Where answers come from other servers: what is told, as its str(), in place of tokens and finish reasons."""
    failure: str | None = None
    """What ended a stream whose headers said that all was well."""
    status: int = 0
    """0: nothing was sent."""
    first_byte_at: float | None = None
    engine_requests: list[RequestId] = field(factory=list)
    """What engines and output handlers call its sequences, in their lines of the log."""
    num_received: int = 0
    """Bytes of the body, as of the answer's."""
    num_sent: int = 0
    is_whole: bool = False
    """The last piece was handed over."""
    is_left: bool = False
    """The client has gone."""
    is_cancelled: bool = False
    """A client wanted it ended."""

    def note(self, message: ASGISendEvent) -> None:
        """This is being sent."""
        if message["type"] == "http.response.body":
            if self.first_byte_at is None:
                self.first_byte_at = trio.current_time()
            self.num_sent += len(message.get("body", b""))
            self.is_whole = not message.get("more_body", False)
        elif message["type"] == "http.response.start":
            self.status = message["status"]

    @property
    def told_status(self) -> int:
        """A stream's head goes out before there is anything to say: that alone is no answer."""
        has_nothing = self.status == 0 or (self.end == LEFT and self.num_sent == 0)
        return CLIENT_LEFT if has_nothing else self.status

    @property
    def end(self) -> str:
        if self.is_cancelled:
            return "cancelled"
        if self.failure is not None:
            return f"error {self.failure}"
        if self.is_whole:
            return "done"
        return LEFT if self.is_left else "cut off"

    def line(self, now: float) -> str:
        first = "-" if self.first_byte_at is None else f"{self.first_byte_at - self.began:.3f}"
        work = f"tokens={self.num_prompt_tokens}+{self.num_tokens} finish={self.finish}"
        return (
            f'{self.label} {self.answer_id} "{printable(self.method)} {printable(self.path)}" '
            f"{self.told_status} model={printable(self.model)} "
            f"{work if self.work is None else self.work} "
            f"first_byte={first} seconds={now - self.began:.3f} bytes={self.num_sent} end={self.end}"
            + (f" trace={self.trace_id}" if self.trace_id != "-" else "")
        )

    def fields(self, now: float) -> dict[str, object]:
        """The same, for a log of JSON."""
        work: dict[str, object] = {
            "prompt_tokens": self.num_prompt_tokens,
            "tokens": self.num_tokens,
            "finish": self.finish,
        }
        return {
            "request_id": self.label,
            "answer_id": self.answer_id,
            "method": self.method,
            "path": self.path[:MAX_PATH],
            "status": self.told_status,
            "model": self.model[:MAX_PATH],
            **(work if self.work is None else {"work": str(self.work)}),
            "first_byte": None if self.first_byte_at is None else round(self.first_byte_at - self.began, 3),
            "seconds": round(now - self.began, 3),
            "bytes": self.num_sent,
            "end": self.end,
            "engine_requests": self.engine_requests[:MAX_TOLD],
        }


def background_access(access: Access) -> Access:
    """Of what goes on after this request, whose own ends with its answer."""
    return evolve(access, method=BACKGROUND, status=200, first_byte_at=None, num_received=0, num_sent=0, is_whole=True)


def tell(access: Access) -> None:
    """It is over."""
    if log.isEnabledFor(logging.INFO):
        now = trio.current_time()
        log.info("%s", access.line(now), extra=access.fields(now))


def access_of(request: Request) -> Access:
    """Of the request that is being answered."""
    return access_in(request.scope)


def access_in(scope: HTTPScope) -> Access:
    """For what is within AccessMiddleware, and without Quart."""
    return cast("Access", cast("dict[str, object]", scope)[_KEY])


def route_name(rule: str) -> str:
    """A route's path with its parameters in braces."""
    return _PARAMETER.sub(r"{\1}", rule)


def printable(text: str) -> str:
    """What a client made up, fit for one line: the rest is escaped, and what is too long ends with an ellipsis."""
    short = text if len(text) <= MAX_PATH else text[:MAX_PATH] + "…"
    escaped = (c if c.isprintable() and c not in '"\\' else c.encode("unicode_escape").decode() for c in short)
    return "".join(escaped).replace('"', "\\x22")


@final
class AccessMiddleware:
    """Around everything else."""

    def __init__(
        self, app: ASGIFramework, metrics: HttpMetrics, *, logs: bool, work: Callable[[], object] | None = None
    ) -> None:
        """`logs`: whether there are lines; the counts are always kept. `work`: makes each request's Access.work."""
        self._app = app
        self._metrics = metrics
        self._logs = logs
        self._work = work

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        access = Access(label_of(scope), scope["method"], scope["path"], trio.current_time())
        if self._work is not None:
            access.work = self._work()
        cast("dict[str, object]", scope)[_KEY] = access
        token = REQUEST.set(access)

        async def receive_counted() -> ASGIReceiveEvent:
            event = await receive()
            if event["type"] == "http.request":
                access.num_received += len(event.get("body", b""))
            elif event["type"] == "http.disconnect":
                access.is_left = True
            return event

        def send_noted(message: ASGISendEvent) -> Awaitable[None]:  # no coroutine of its own: this is every token's way
            access.note(message)
            sending: Awaitable[None] = send(message)
            return sending

        try:
            await self._app(scope, receive_counted, send_noted)
        except Exception:
            access.failure = "internal"
            raise
        finally:
            self._end(access)
            REQUEST.reset(token)

    def _end(self, access: Access) -> None:
        now = trio.current_time()
        if access.handler not in UNMEASURED:
            seconds = now - access.began
            status = access.told_status
            self._metrics.observe(access.handler, access.method, status, seconds, access.num_received, access.num_sent)
        if self._logs and access.handler not in QUIET_PATHS:
            tell(access)


def label_of(scope: HTTPScope) -> str:
    sent = next((value for name, value in scope["headers"] if name.lower() == HEADER.lower().encode()), b"")
    return request_label(sent.decode("latin-1"))
