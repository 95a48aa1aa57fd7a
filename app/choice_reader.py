"""From a choice's outputs to its parts, over a parser that sees only text. The readers that app/chat.py hands out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from attrs import frozen

from app.parts import CallPiece, Content, Part, Reasoning
from protocol.messages import FinishReason, RequestOutput


class TextParser(Protocol):
    """Reads a text that comes in pieces. Pure; what it has told after some text does not depend on the pieces."""

    @property
    def whole_calls(self) -> Sequence[bool]:
        """Of each call that was told, in order, whether its arguments are complete and valid."""
        ...

    def feed(self, text: str) -> Sequence[Part]:
        """What can be told now."""
        ...

    def end(self, cut: bool) -> Sequence[Part]:
        """The text is over: what was held back. `cut` says that the model would have gone on."""
        ...


@frozen
class Wanted:
    """Which parts of a choice its request wants to be told."""

    max_calls: int | None = None
    include_reasoning: bool = True

    def of(self, parts: Sequence[Part]) -> list[Part]:
        return [part for part in parts if self._is_wanted(part)]

    def _is_wanted(self, part: Part) -> bool:
        if isinstance(part, CallPiece):
            return self.max_calls is None or part.index < self.max_calls
        return bool(part.text) and (self.include_reasoning or not isinstance(part, Reasoning))

    def finish_reason(self, reason: str, whole_calls: Sequence[bool]) -> str:
        """ "tool_calls" instead of "stop" after whole calls; any other reason as it is."""
        calls = whole_calls[: self.max_calls]
        return "tool_calls" if reason == FinishReason.STOP and calls and all(calls) else reason


class PlainReader:
    """A text that is the answer and nothing else."""

    num_reasoning_tokens = 0

    def feed(self, output: RequestOutput) -> list[Part]:
        return [Content(output.text)] if output.text else []

    def finish_reason(self, reason: str) -> str:
        return reason


class TextReader:
    """A ChoiceReader over a TextParser."""

    def __init__(
        self,
        parser: TextParser,
        wanted: Wanted | None = None,
        *,
        reasoning_marks: tuple[int, int] | None = None,
    ) -> None:
        """`reasoning_marks` are the tokens before and after thoughts, if these are one token each."""
        self._parser = parser
        self._wanted = wanted or Wanted()
        self._count = _ReasoningCount(reasoning_marks)

    @property
    def num_reasoning_tokens(self) -> int:
        return self._count.num_tokens

    def feed(self, output: RequestOutput) -> list[Part]:
        parts = list(self._parser.feed(output.text)) if output.text else []
        if output.finish_reason is not None:
            parts += self._parser.end(cut=output.finish_reason != FinishReason.STOP)
        self._count.add(output, parts)
        return merged(self._wanted.of(parts))

    def finish_reason(self, reason: str) -> str:
        return self._wanted.finish_reason(reason, self._parser.whole_calls)


class _ReasoningCount:
    """How many tokens were thoughts: those before the closing mark. Where the marks are no tokens, it is the thoughts'
    share of the text."""

    def __init__(self, marks: tuple[int, int] | None) -> None:
        self._marks = marks
        self._is_over = False
        self._num_thought = 0
        self._num_all = 0
        self._num_characters = 0
        self._num_reasoning_characters = 0

    @property
    def num_tokens(self) -> int:
        if not self._num_reasoning_characters:
            return 0
        if self._marks is not None:
            return self._num_thought
        return round(self._num_all * min(self._num_reasoning_characters / max(self._num_characters, 1), 1.0))

    def add(self, output: RequestOutput, parts: Sequence[Part]) -> None:
        if self._is_over:
            return
        self._num_all += len(output.token_ids)
        self._num_characters += len(output.text)
        for part in parts:
            if isinstance(part, Reasoning):
                self._num_reasoning_characters += len(part.text)
        if self._marks is None:
            return
        opening, closing = self._marks
        thought = output.token_ids
        if closing in thought:
            self._is_over = True
            thought = thought[: thought.index(closing)]
        self._num_thought += len(thought) - thought.count(opening)


def merged(parts: Sequence[Part]) -> list[Part]:
    """The same with neighbours of one kind, and of one call, as one part."""
    if len(parts) < 2:
        return list(parts)
    runs: list[list[Part]] = []
    for part in parts:
        if runs and _belong_together(runs[-1][0], part):
            runs[-1].append(part)
        else:
            runs.append([part])
    return [_joined(run) for run in runs]


def _belong_together(first: Part, second: Part) -> bool:
    if isinstance(first, CallPiece):
        return isinstance(second, CallPiece) and first.index == second.index
    return type(first) is type(second)


def _joined(run: Sequence[Part]) -> Part:
    first = run[0]
    if len(run) == 1:
        return first
    if isinstance(first, CallPiece):
        pieces = "".join(part.arguments for part in run if isinstance(part, CallPiece))
        return CallPiece(first.index, pieces, first.id, first.name)
    text = "".join(part.text for part in run if not isinstance(part, CallPiece))
    return Reasoning(text) if isinstance(first, Reasoning) else Content(text)
