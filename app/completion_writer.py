"""Deltas to the body and the chunks of /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define, frozen
from msgspec import UNSET

from app import sse
from app.answer import Answer
from app.head import Head
from app.logprobs import CompletionLogprobsWriter, EchoedToken, joined, prompt_logprobs
from app.schemas.completions import Completion, CompletionChoice, CompletionLogprobs
from protocol.messages import RequestOutput


@frozen
class EchoedPrompt:
    """What comes before a choice's own text when echo is asked for."""

    text: str
    first_token: EchoedToken


@frozen
class CompletionForm:
    """What of a request decides the shape of its answer."""

    logprobs: bool
    prompt_logprobs: bool
    return_token_ids: bool
    echoes: Sequence[EchoedPrompt] | None
    """One per prompt."""
    prompts: Sequence[list[int]]
    n: int
    tokens_as_ids: bool = False
    """Log-probabilities name tokens by their ids."""
    prompt_texts: Sequence[str] | None = None
    """One per prompt; told in a whole answer."""


@define
class _Piece:
    """What one delta, or all deltas together, give of a choice."""

    text: str = ""
    logprobs: CompletionLogprobs | None = None
    token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def add(self, piece: _Piece) -> None:
        self.text += piece.text
        if piece.logprobs is not None:
            self.logprobs = piece.logprobs if self.logprobs is None else joined(self.logprobs, piece.logprobs)
        if piece.token_ids is not None:
            self.token_ids = (self.token_ids or []) + piece.token_ids
        self.prompt_logprobs = piece.prompt_logprobs or self.prompt_logprobs
        self.finish_reason = piece.finish_reason
        self.stop_reason = piece.stop_reason


class CompletionWriter:
    """Of one request; remembers, per choice, what was told."""

    def __init__(self, head: Head, form: CompletionForm, answer: Answer) -> None:
        self._head = head
        self._form = form
        self._answer = answer
        self._logprobs = [CompletionLogprobsWriter(form.tokens_as_ids) for _ in range(answer.num_choices)]
        self._begun = [False] * answer.num_choices
        self._plain: dict[int, sse.TextEvents] = {}
        """By choice: for deltas that are text and nothing else."""

    def frames(self, outputs: list[tuple[int, RequestOutput]]) -> list[bytes]:
        return [frame for index, output in outputs for frame in self._frames(index, output)]

    def held_back(self) -> list[bytes]:
        return []

    def closing(self) -> list[bytes]:
        if not self._head.include_usage:
            return []
        return [sse.event(self._head.of(Completion, choices=[], usage=self._answer.usage()))]

    async def whole(self) -> Completion:
        """Receives until every choice has ended."""
        pieces = [_Piece() for _ in range(self._answer.num_choices)]
        while not self._answer.finished:
            for index, output in await self._answer.receive():
                pieces[index].add(self._piece(index, output))
        choices = [self._choice(index, piece, whole=True) for index, piece in enumerate(pieces)]
        transfer = self._answer.kv_transfer_params(self._head.id)
        return self._head.of(Completion, choices=choices, usage=self._answer.usage(), kv_transfer_params=transfer)

    def _frames(self, index: int, output: RequestOutput) -> list[bytes]:
        if self._begun[index] and self._is_plain(output):
            return [self._plain_event(index, output.text)] if output.text else []
        piece = self._piece(index, output)
        return [self._event(index, piece)] if _is_told(piece) else []

    def _is_plain(self, output: RequestOutput) -> bool:
        form = self._form
        return output.finish_reason is None and not (
            form.logprobs or form.prompt_logprobs or form.return_token_ids or self._head.continuous_usage
        )

    def _plain_event(self, index: int, text: str) -> bytes:
        if index not in self._plain:
            choice = self._choice(index, _Piece())
            chunk = self._head.of(Completion, choices=[choice], usage=self._head.usage(self._answer))
            self._plain[index] = sse.TextEvents(chunk, "text")
        return self._plain[index].event(text)

    def _piece(self, index: int, output: RequestOutput) -> _Piece:
        piece = _Piece(
            text=output.text,
            token_ids=output.token_ids if self._form.return_token_ids else None,
            finish_reason=output.finish_reason,
            stop_reason=output.stop_reason,
        )
        if self._form.logprobs and output.logprobs is not None:
            piece.logprobs = self._logprobs[index].write(output.logprobs)
        if self._form.prompt_logprobs and output.prompt_logprobs is not None:
            piece.prompt_logprobs = prompt_logprobs(output.prompt_logprobs)
        if not self._begun[index] and _starts(output):
            self._begun[index] = True
            if self._form.echoes is not None:
                self._prepend(piece, index, output, self._form.echoes[index // self._form.n])
        return piece

    def _prepend(self, piece: _Piece, index: int, output: RequestOutput, echo: EchoedPrompt) -> None:
        piece.text = echo.text + piece.text
        if self._form.logprobs and output.prompt_logprobs is not None:
            # Offsets count from the echoed prompt's start, so the new tokens are written again after it.
            writer = self._logprobs[index] = CompletionLogprobsWriter(self._form.tokens_as_ids)
            before = writer.write_prompt(echo.first_token, output.prompt_logprobs)
            piece.logprobs = joined(before, writer.write(output.logprobs or []))

    def _event(self, index: int, piece: _Piece) -> bytes:
        choices, usage = [self._choice(index, piece)], self._head.usage(self._answer)
        transfer = self._answer.kv_transfer_params(self._head.id) if piece.finish_reason else UNSET
        return sse.event(self._head.of(Completion, choices=choices, usage=usage, kv_transfer_params=transfer))

    def _choice(self, index: int, piece: _Piece, whole: bool = False) -> CompletionChoice:
        return CompletionChoice(
            index,
            piece.text,
            piece.logprobs,
            piece.finish_reason,
            stop_reason=piece.stop_reason if piece.finish_reason else UNSET,
            prompt_logprobs=piece.prompt_logprobs if whole or piece.prompt_logprobs else UNSET,
            token_ids=UNSET if piece.token_ids is None else piece.token_ids,
            prompt_token_ids=self._form.prompts[index // self._form.n]
            if whole and self._form.return_token_ids
            else UNSET,
            prompt_text=self._form.prompt_texts[index // self._form.n]
            if whole and self._form.prompt_texts is not None
            else UNSET,
        )


def _starts(output: RequestOutput) -> bool:
    return bool(output.token_ids or output.prompt_logprobs or output.finish_reason)


def _is_told(piece: _Piece) -> bool:
    """A delta that only holds text back gives no event."""
    return bool(piece.text or piece.finish_reason or piece.token_ids or piece.logprobs or piece.prompt_logprobs)
