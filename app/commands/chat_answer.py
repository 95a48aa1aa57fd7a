"""One answer as it comes, and its figures. Used by app/commands/chat_session.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs
import msgspec
import trio

from app.api_client.call_error import NoAnswerError, ended_by
from app.api_client.client import Stream
from app.counted import counted


class _CalledFunction(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct, frozen=True):
    index: int = 0
    function: _CalledFunction = _CalledFunction()


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    """What some servers call `reasoning`."""
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta = _Delta()
    finish_reason: str | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Chunk(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = None


class Shown(Protocol):
    """Where it is shown."""

    def text(self, text: str) -> None: ...

    def thought(self, text: str) -> None: ...


@attrs.define
class Answer:
    """As far as it has come."""

    asked_at: float
    """By trio's clock, as the others."""
    text: str = ""
    calls: dict[int, list[str]] = attrs.field(factory=dict)
    """Name and arguments, by the call's index."""
    finish_reason: str | None = None
    num_prompt_tokens: int | None = None
    num_tokens: int | None = None
    """As the server counts; None if it does not tell."""
    first_at: float | None = None
    last_at: float | None = None

    def take(self, event: bytes, now: float, shown: Shown) -> None:
        """Raises msgspec.DecodeError for what is no chunk of a chat, and RefusedError for one that tells a failure."""
        chunk = _DECODER.decode(event)
        if chunk.error:
            raise ended_by(event)
        if chunk.usage is not None:
            self.num_prompt_tokens, self.num_tokens = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
        for choice in chunk.choices[:1]:
            self.finish_reason = choice.finish_reason or self.finish_reason
            self._take_delta(choice.delta, now, shown)

    def _take_delta(self, delta: _Delta, now: float, shown: Shown) -> None:
        thought = delta.reasoning or delta.reasoning_content
        text = delta.content or delta.refusal
        if thought or text or delta.tool_calls:
            self.first_at = now if self.first_at is None else self.first_at
            self.last_at = now
        if thought:
            shown.thought(thought)
        if text:
            self.text += text
            shown.text(text)
        for call in delta.tool_calls or ():
            known = self.calls.setdefault(call.index, ["", ""])
            known[0] += call.function.name or ""
            known[1] += call.function.arguments or ""

    def figures(self) -> str:
        """In a line; empty if nothing came."""
        if self.first_at is None or self.last_at is None:
            return ""
        told = [f"first token after {self.first_at - self.asked_at:.2f} s"]
        seconds = self.last_at - self.first_at
        if self.num_tokens is not None:
            told.insert(0, counted(self.num_tokens, "token"))
            if self.num_tokens > 1 and seconds > 0:
                told.insert(1, f"{(self.num_tokens - 1) / seconds:.1f} tokens/s")
        if self.num_prompt_tokens:
            told.append(f"prompt of {self.num_prompt_tokens}")
        return ", ".join(told)


_DECODER = msgspec.json.Decoder(_Chunk)


async def hear(stream: Stream, answer: Answer, shown: Shown, clock: Callable[[], float] = trio.current_time) -> None:
    """All of it. What came before a failure is in `answer`. Raises NoAnswerError and RefusedError."""
    while events := await stream.receive():
        now = clock()
        for event in events:
            try:
                answer.take(event, now, shown)
            except msgspec.DecodeError as error:
                raise NoAnswerError(f"the server answered what is no chunk of a chat: {error}") from error
    if not stream.is_done and answer.finish_reason is None:
        raise NoAnswerError("the server broke the answer off before its end")
