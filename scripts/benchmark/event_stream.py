"""One streamed HTTP response taken apart as its bytes arrive: chunked encoding off, server-sent events out.

As little as possible is done while the clock runs: events are kept as bytes and read when everything is over.
"""

from __future__ import annotations

import msgspec

EVENT_END = b"\n\n"
DONE = b"[DONE]"


class UnexpectedAnswerError(Exception):
    """A server answered something that a benchmark cannot go on with."""


class EventStream:
    """Feed it what the socket gives; it returns the data of the events that are complete."""

    def __init__(self) -> None:
        self._raw = b""
        self._text = b""
        self._left = 0
        """Bytes of the current chunk that have not come yet, its line break included."""
        self._chunked: bool | None = None
        """None until the response's head is complete."""
        self.ended = False
        """[DONE] has come."""

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
        self._text += self._unchunk(data) if self._chunked else data
        *events, self._text = self._text.replace(b"\r\n", b"\n").split(EVENT_END)
        found_events = [event.removeprefix(b"data: ") for event in events if event.startswith(b"data: ")]
        self.ended = self.ended or DONE in found_events
        return [event for event in found_events if event != DONE]

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
