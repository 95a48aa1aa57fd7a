"""One streamed HTTP response taken apart as its bytes arrive: chunked encoding off, server-sent events out.

As little as possible is done while the clock runs: events are kept as bytes and read when everything is over.
"""

from __future__ import annotations

import msgspec

from app.api_client.event_reader import EventReader


class UnexpectedAnswerError(Exception):
    """A server answered something that a benchmark cannot go on with."""


class EventStream:
    """Feed it what the socket gives; it returns the data of the events that are complete."""

    def __init__(self) -> None:
        self._raw = b""
        self._events = EventReader()
        self._left = 0
        """Bytes of the current chunk that have not come yet, its line break included."""
        self._chunked: bool | None = None
        """None until the response's head is complete."""

    @property
    def ended(self) -> bool:
        """[DONE] has come."""
        return self._events.is_done

    def feed(self, data: bytes) -> list[bytes]:
        """Raises UnexpectedAnswerError for any status but 200."""
        if self._chunked is None:
            self._raw += data
            head, found, rest = self._raw.partition(b"\r\n\r\n")
            if not found:
                return []
            if b" 200 " not in head.split(b"\r\n", 1)[0]:
                raise UnexpectedAnswerError(self._raw.decode(errors="replace")[:500])
            self._chunked = b"transfer-encoding: chunked" in head.lower()
            self._raw, data = b"", rest
        return self._events.take(self._unchunk(data) if self._chunked else data)

    def _unchunk(self, data: bytes) -> bytes:
        parts = []
        self._raw += data
        while self._raw:
            if self._left == 0:
                size, found, rest = self._raw.partition(b"\r\n")
                if not found:
                    break
                self._raw, self._left = rest, int(size.split(b";")[0], 16) + 2
            part = self._raw[: self._left]
            self._raw = self._raw[self._left :]
            parts.append(part[: max(self._left - 2, 0)])
            self._left -= len(part)
        return b"".join(parts)


class _Choice(msgspec.Struct):
    text: str = ""
    finish_reason: str | None = None


class _PromptTokensDetails(msgspec.Struct):
    cached_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptTokensDetails | None = None


class Chunk(msgspec.Struct):
    """What a benchmark wants to know of a /v1/completions chunk."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: dict[str, object] | str | None = None


_DECODER = msgspec.json.Decoder(Chunk)


def read_chunk(event: bytes) -> Chunk:
    """Raises UnexpectedAnswerError for an error frame and for what is no chunk."""
    try:
        chunk = _DECODER.decode(event)
    except msgspec.DecodeError as error:
        raise UnexpectedAnswerError(f"{error}: {event[:300]!r}") from error
    if chunk.error is not None:
        raise UnexpectedAnswerError(str(chunk.error))
    return chunk
