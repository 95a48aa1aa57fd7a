"""One request of `trillm bench`, and when its answer came. Used by app/commands/bench_load.py."""

from __future__ import annotations

from itertools import pairwise

import attrs
import msgspec
import trio

from app.api_client.call_error import NoAnswerError, ended_by
from app.api_client.client import ApiClient
from app.commands.bench_prompts import Prompt
from protocol.errors import TrillmError


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    """What some servers call `reasoning`."""


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    def said(self) -> str:
        if self.delta is None:
            return self.text or ""
        return self.delta.content or self.delta.reasoning or self.delta.reasoning_content or ""


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = None


_DECODER = msgspec.json.Decoder(_Chunk)


@attrs.define(eq=False)
class Outcome:
    """What became of one request. Times in seconds since the load began."""

    planned_at: float
    """When it was to be sent; later if it had to wait for its turn."""
    began: float = 0.0
    first_at: float | None = None
    times: list[float] = attrs.field(factory=list)
    """Of events with text, of which one may have several tokens."""
    text: str = ""
    num_prompt_tokens: int = 0
    num_tokens: int | None = None
    """Both by the server's `usage`; None if it does not tell."""
    is_finished: bool = False
    error: str = ""
    """Why it failed; empty if it did not."""

    @property
    def num_output_tokens(self) -> int:
        """By the server's count, or else one for each event with text."""
        return len(self.times) if self.num_tokens is None else self.num_tokens

    @property
    def ttft(self) -> float:
        return 0.0 if self.first_at is None else self.first_at - self.began

    @property
    def latency(self) -> float:
        """To the last of its text."""
        return (self.times[-1] if self.times else self.first_at or self.began) - self.began

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first; None for an answer of one token."""
        return (self.latency - self.ttft) / (self.num_output_tokens - 1) if self.num_output_tokens > 1 else None

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.times)]

    def take(self, event: bytes, now: float) -> None:
        """Raises msgspec.DecodeError for what is no chunk, and RefusedError for one that tells a failure."""
        chunk = _DECODER.decode(event)
        if chunk.error:
            raise ended_by(event)
        if chunk.usage is not None:
            self.num_prompt_tokens, self.num_tokens = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
        for choice in chunk.choices[:1]:
            said = choice.said()
            self.is_finished = self.is_finished or choice.finish_reason is not None
            if said:
                self.times.append(now)
                self.text += said
            if self.first_at is None and (said or choice.finish_reason):
                self.first_at = now


@attrs.frozen
class Form:
    """What all requests have in common."""

    path: str
    model: str
    is_chat: bool
    fields: dict[str, object]
    """Sampling, and what else goes into the body."""
    timeout: float

    def body(self, prompt: Prompt) -> dict[str, object]:
        asked: dict[str, object] = (
            {"messages": [{"role": "user", "content": prompt.content}]} if self.is_chat else {"prompt": prompt.content}
        )
        return {
            "model": self.model,
            **asked,
            "max_tokens": prompt.num_output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.fields,
        }


async def call(client: ApiClient, form: Form, prompt: Prompt, outcome: Outcome, start: float) -> None:
    """Until it has ended, well or not. What came is in `outcome`."""
    outcome.began = trio.current_time() - start
    with trio.move_on_after(form.timeout) as scope:
        try:
            await _hear(client, form.path, form.body(prompt), outcome, start)
        except TrillmError as error:
            outcome.error = error.message
    if scope.cancelled_caught:
        outcome.error = f"it did not end within {form.timeout:g} s"


async def _hear(client: ApiClient, path: str, body: dict[str, object], outcome: Outcome, start: float) -> None:
    async with client.open_stream(path, body) as stream:
        while events := await stream.receive():
            now = trio.current_time() - start
            for event in events:
                try:
                    outcome.take(event, now)
                except msgspec.DecodeError as error:
                    raise NoAnswerError(f"the server answered what is no chunk: {error}") from error
    if not (stream.is_done or outcome.is_finished):
        raise NoAnswerError("the server broke the answer off before its end")
    if outcome.first_at is None:
        raise NoAnswerError("the answer had no token")
