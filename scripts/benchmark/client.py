"""The load generator: any number of streamed completions over plain sockets and one selector, in one thread.

An HTTP library would cost more CPU per token than the servers under test, and on few cores the client would be measured
instead of them. This one takes some ten microseconds per event; what it took is reported with the figures.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from functools import cached_property
from itertools import pairwise

import attrs
import msgspec

from scripts.benchmark.event_stream import Chunk, EventStream, UnexpectedAnswerError, read_chunk

RECEIVE_BYTES = 65536
CONNECT_SECONDS = 30.0


@attrs.frozen
class Address:
    host: str
    port: int


@attrs.define(slots=False)
class Call:
    """One streamed completion and when its events came, in seconds of time.perf_counter."""

    address: Address
    model: str
    prompt: str
    max_tokens: int
    sent_at: float = 0.0
    events: list[tuple[float, bytes]] = attrs.field(factory=list)
    ended_at: float | None = None
    failure: str = ""
    """Why there is no whole answer; empty if there is one or still may be."""

    def request(self) -> bytes:
        body = msgspec.json.encode(
            {
                "model": self.model,
                "prompt": self.prompt,
                "max_tokens": self.max_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {self.address.host}:{self.address.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body

    @cached_property
    def _chunks(self) -> list[tuple[float, Chunk]]:
        """To be read only once no more events come."""
        return [(at, read_chunk(event)) for at, event in self.events]

    @cached_property
    def text_times(self) -> list[float]:
        """When text came. An event may carry several tokens; a token without text gives no event."""
        return [at for at, chunk in self._chunks if chunk.choices and chunk.choices[0].text]

    @property
    def num_tokens(self) -> int:
        """Output tokens by the server's count. Raises UnexpectedAnswerError if it stopped early or does not say."""
        usage = next((chunk.usage for _, chunk in reversed(self._chunks) if chunk.usage), None)
        if usage is None or usage.completion_tokens != self.max_tokens:
            raise UnexpectedAnswerError(f"asked for {self.max_tokens} tokens, the server counts {usage}")
        return usage.completion_tokens

    @property
    def num_prompt_tokens(self) -> int:
        return next(chunk.usage.prompt_tokens for _, chunk in reversed(self._chunks) if chunk.usage)

    @property
    def num_cached_tokens(self) -> int:
        """Of the prompt, that the server had; 0 if it does not say."""
        details = next(chunk.usage.prompt_tokens_details for _, chunk in reversed(self._chunks) if chunk.usage)
        return 0 if details is None else details.cached_tokens

    @property
    def first_token_seconds(self) -> float:
        return self.text_times[0] - self.sent_at

    def gaps(self, since: float = 0.0) -> list[float]:
        """Seconds between one text and the next, from a moment on."""
        times = [at for at in self.text_times if at >= since]
        return [later - earlier for earlier, later in pairwise(times)]


class Client:
    """Starts calls and lets them run. What is still running when it is closed is cut off.

    A call that goes wrong raises UnexpectedAnswerError, or with `bears_failures` ends with its `failure` told.
    """

    def __init__(self, *, bears_failures: bool = False) -> None:
        self._bears_failures = bears_failures
        self._selector = selectors.DefaultSelector()
        self._running: dict[int, tuple[socket.socket, Call, EventStream]] = {}

    def start(self, call: Call) -> None:
        try:
            connection = socket.create_connection((call.address.host, call.address.port), timeout=CONNECT_SECONDS)
        except OSError as error:
            self._fail(call, f"no connection: {error}")
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        call.sent_at = time.perf_counter()
        try:
            connection.sendall(call.request())
        except OSError as error:
            connection.close()
            self._fail(call, f"the request was not taken: {error}")
            return
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ, connection.fileno())
        self._running[connection.fileno()] = connection, call, EventStream()

    @property
    def num_running(self) -> int:
        return len(self._running)

    def run(self, until: Callable[[], bool], seconds: float) -> bool:
        """Receive until the condition holds; False if that took longer than `seconds`."""
        deadline = time.perf_counter() + seconds
        while not until():
            left = deadline - time.perf_counter()
            if left <= 0:
                return False
            for key, _ in self._selector.select(min(left, 1.0)):
                self._receive(key.data)
        return True

    def finish(self, seconds: float) -> None:
        """Receive until every call has ended. What has not after `seconds` is cut off and has failed."""
        if not self.run(lambda: not self._running, seconds):
            for fileno, (_, call, _) in list(self._running.items()):
                self._drop(fileno)
                self._fail(call, f"no end of the answer within {seconds:.0f} s")

    def close(self) -> None:
        for fileno in list(self._running):
            self._drop(fileno)
        self._selector.close()

    def _receive(self, fileno: int) -> None:
        connection, call, stream = self._running[fileno]
        try:
            data = connection.recv(RECEIVE_BYTES)
            now = time.perf_counter()
            call.events += [(now, event) for event in stream.feed(data)]
        except BlockingIOError:
            return
        except (OSError, UnexpectedAnswerError) as error:
            self._drop(fileno)
            self._fail(call, str(error))
            return
        if stream.ended:
            call.ended_at = now
            self._drop(fileno)
        elif not data:
            self._drop(fileno)
            self._fail(call, f"the stream broke off after {len(call.events)} events")

    def _fail(self, call: Call, failure: str) -> None:
        call.failure = failure = " ".join(failure.split())  # of an HTTP answer, in one line
        if not self._bears_failures:
            raise UnexpectedAnswerError(failure)

    def _drop(self, fileno: int) -> None:
        connection, _, _ = self._running.pop(fileno)
        self._selector.unregister(connection)
        connection.close()
