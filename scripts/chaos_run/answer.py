"""What a client was told, streamed or whole, in a form in which two answers to one request can be compared.

Of everything in it the same request gets the same again, whatever died meanwhile: texts, log-probabilities, ends and
usage. (How many tokens were found in a cache, names and dates may differ, and are left out.)
"""

from __future__ import annotations

from typing import Any

import attrs

from scripts.chaos_run.exchange import BrokenAnswerError, as_json

EVENT_END = b"\n\n"
DONE = b"[DONE]"


@attrs.define
class Choice:
    text: str = ""
    logprobs: list[Any] = attrs.field(factory=list)
    """Of a chat: one entry per token. Of a completion: the columns' pieces, per token."""
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@attrs.define
class Told:
    """One answer, as far as it has come."""

    choices: dict[int, Choice] = attrs.field(factory=dict)
    usage: dict[str, int] | None = None
    error: str | None = None
    num_events: int = 0
    num_done: int = 0
    _rest: bytes = b""

    def feed(self, data: bytes) -> None:
        """More of a stream's bytes. Raises BrokenAnswerError for what must not come there."""
        *events, self._rest = (self._rest + data).split(EVENT_END)
        for event in events:
            self._take_event(event)

    def _take_event(self, event: bytes) -> None:
        if not event.startswith(b"data: "):
            raise BrokenAnswerError(f"no event: {event[:200]!r}")
        payload = event.removeprefix(b"data: ")
        if self.num_done:
            raise BrokenAnswerError(f"after [DONE] came {payload[:200]!r}")
        if payload == DONE:
            self.num_done += 1
            return
        self.num_events += 1
        self._take_chunk(as_json(payload))

    def _take_chunk(self, chunk: dict[str, Any]) -> None:
        if self.error is not None:
            raise BrokenAnswerError(f"after an error came {chunk}")
        if "error" in chunk:
            self.error = str(chunk["error"]["message"])
            return
        if chunk.get("usage"):
            self._take_usage(chunk["usage"])
        for told in chunk["choices"]:
            self._take_choice(told)

    def take_whole(self, body: dict[str, Any]) -> None:
        """A response that was not streamed."""
        self._take_usage(body["usage"])
        for told in body["choices"]:
            self._take_choice(told)
        self.num_done = 1

    def _take_usage(self, usage: dict[str, Any]) -> None:
        if self.usage is not None:
            raise BrokenAnswerError("usage came twice")
        self.usage = {name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}

    def _take_choice(self, told: dict[str, Any]) -> None:
        choice = self.choices.setdefault(told["index"], Choice())
        if choice.finish_reason is not None:
            raise BrokenAnswerError(f"choice {told['index']} went on after its end: {told}")
        message = told.get("delta") or told.get("message") or {}
        choice.text += told.get("text") or message.get("content") or ""
        choice.logprobs += entries(told.get("logprobs"))
        choice.finish_reason = told.get("finish_reason")
        choice.stop_reason = told.get("stop_reason")

    def complaint(self) -> str | None:
        """What is wrong with an answer that has come to its end by itself."""
        if self.error is not None:
            return f"it ended with an error: {self.error}"
        if self._rest or self.num_done != 1:
            return f"it ended without [DONE], {self._rest[:200]!r} unfinished"
        if open_ends := [index for index, choice in self.choices.items() if choice.finish_reason is None]:
            return f"choices {open_ends} have no end"
        if self.usage is None:
            return "it tells no usage"
        return None

    def comparable(self) -> dict[str, Any]:
        choices = {str(index): attrs.asdict(choice) for index, choice in sorted(self.choices.items())}
        return {"choices": choices, "usage": self.usage}


def entries(logprobs: dict[str, Any] | None) -> list[Any]:
    """One entry per token, of a chat's or a completion's log-probabilities."""
    if not logprobs:
        return []
    if "content" in logprobs:
        return list(logprobs["content"] or [])
    columns = (logprobs[name] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"))
    return [list(row) for row in zip(*columns, strict=True)]


def first_difference(expected: dict[str, Any], got: dict[str, Any]) -> str | None:
    """In words; None if they are equal."""
    if expected == got:
        return None
    if expected["usage"] != got["usage"]:
        return f"usage: expected {expected['usage']}, got {got['usage']}"
    for index, wanted in expected["choices"].items():
        found = got["choices"].get(index)
        if found is None:
            return f"choice {index} is missing"
        for name, value in wanted.items():
            if found[name] != value:
                return f"choice {index}: {name}: expected {parting(value, found[name])}"
    return "choices that were not asked for"


def parting(expected: Any, got: Any) -> str:  # noqa: ANN401  text, list or number
    """Where two values part."""
    if not isinstance(expected, str | list) or type(expected) is not type(got):
        return f"{expected!r}, got {got!r}"
    pairs = zip(expected, got, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(got)))
    window = slice(max(at - 2, 0), at + 20) if isinstance(expected, str) else slice(at, at + 1)
    return f"{expected[window]!r}, got {got[window]!r} (at {at} of {len(expected)}, of {len(got)})"
