"""Deltas to the body and the chunks of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define, field, frozen
from msgspec import UNSET, UnsetType

from app import sse
from app.answer import Answer
from app.call_reader import CallReader
from app.calls import Calls
from app.head import Head
from app.logprobs import chat_logprobs, prompt_logprobs
from app.schemas.chat import (
    AnsweredToolCall,
    AnswerMessage,
    CalledFunction,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    Delta,
    FunctionDelta,
    ToolCallDelta,
)
from protocol.messages import FinishReason, PositionLogprobs, RequestOutput


@frozen
class ChatForm:
    """What of a request decides the shape of its answer."""

    logprobs: bool
    prompt_logprobs: bool
    return_token_ids: bool
    prompt: list[int]
    calls: Calls | None
    """Set if the text is a forced tool call."""


@define
class _Whole:
    """All deltas of one choice together."""

    text: list[str] = field(factory=list)
    logprobs: list[PositionLogprobs] = field(factory=list)
    token_ids: list[int] = field(factory=list)
    finish_reason: str = FinishReason.STOP
    stop_reason: int | str | None = None


class ChatWriter:
    """Of one request; remembers, per choice, what was told."""

    def __init__(self, head: Head, form: ChatForm, answer: Answer) -> None:
        self._head = head
        self._form = form
        self._answer = answer
        self._begun = [False] * answer.num_choices
        self._plain: dict[int, sse.TextEvents] = {}
        """By choice: for deltas that are text and nothing else."""
        calls = form.calls
        self._readers = [CallReader(calls) for _ in range(answer.num_choices)] if calls else None

    def frames(self, outputs: list[tuple[int, RequestOutput]]) -> list[bytes]:
        return [frame for index, output in outputs for frame in self._frames(index, output)]

    def closing(self) -> list[bytes]:
        if not self._head.include_usage:
            return []
        return [sse.event(self._head.of(ChatChunk, choices=[], usage=self._answer.usage()))]

    async def whole(self) -> ChatCompletion:
        """Receives until every choice has ended."""
        choices = [_Whole() for _ in range(self._answer.num_choices)]
        prompt: list[dict[str, Any] | None] | None = None
        while not self._answer.finished:
            for index, output in await self._answer.receive():
                choice = choices[index]
                choice.text.append(output.text)
                choice.logprobs += output.logprobs or []
                choice.token_ids += output.token_ids
                if self._form.prompt_logprobs and output.prompt_logprobs is not None:
                    prompt = prompt_logprobs(output.prompt_logprobs)
                if output.finish_reason is not None:
                    choice.finish_reason, choice.stop_reason = output.finish_reason, output.stop_reason
        return self._head.of(
            ChatCompletion,
            choices=[self._choice(index, choice) for index, choice in enumerate(choices)],
            usage=self._answer.usage(),
            prompt_logprobs=prompt,
            prompt_token_ids=self._form.prompt if self._form.return_token_ids else UNSET,
        )

    def _choice(self, index: int, whole: _Whole) -> ChatChoice:
        message, finish_reason = self._message(index, "".join(whole.text), whole.finish_reason)
        return ChatChoice(
            index,
            message,
            chat_logprobs(whole.logprobs) if self._form.logprobs else None,
            finish_reason,
            whole.stop_reason,
            token_ids=whole.token_ids if self._form.return_token_ids else UNSET,
        )

    def _message(self, index: int, text: str, finish_reason: str) -> tuple[AnswerMessage, str]:
        if self._readers is None:
            return AnswerMessage(text), finish_reason
        reader = self._readers[index]
        reader.feed(text)
        calls = [AnsweredToolCall(call.id, CalledFunction(call.name, call.arguments)) for call in reader.calls]
        return AnswerMessage(None, tool_calls=calls), reader.finish_reason(finish_reason)

    def _frames(self, index: int, output: RequestOutput) -> list[bytes]:
        if self._begun[index] and self._is_plain(output):
            return [self._plain_event(index, output.text)] if output.text else []
        frames = [] if self._begun[index] else [self._event(index, Delta("assistant", ""))]
        self._begun[index] = True
        logprobs = chat_logprobs(output.logprobs) if self._form.logprobs and output.logprobs else None
        token_ids = output.token_ids if self._form.return_token_ids and output.token_ids else UNSET
        for delta in self._deltas(index, output, told=logprobs is not None or token_ids is not UNSET):
            frames.append(self._event(index, delta, logprobs=logprobs, token_ids=token_ids))
            logprobs, token_ids = None, UNSET
        if output.finish_reason is not None:
            reason: str = output.finish_reason
            if self._readers is not None:
                reason = self._readers[index].finish_reason(reason)
            frames.append(self._event(index, Delta(), finish_reason=reason, stop_reason=output.stop_reason))
        return frames

    def _is_plain(self, output: RequestOutput) -> bool:
        form = self._form
        return output.finish_reason is None and not (
            form.logprobs or form.return_token_ids or self._readers is not None or self._head.continuous_usage
        )

    def _plain_event(self, index: int, text: str) -> bytes:
        if index not in self._plain:
            choice = ChatChunkChoice(index, Delta(content=""))
            chunk = self._head.of(ChatChunk, choices=[choice], usage=self._head.usage(self._answer))
            self._plain[index] = sse.TextEvents(chunk, "content")
        return self._plain[index].event(text)

    def _deltas(self, index: int, output: RequestOutput, told: bool) -> Sequence[Delta]:
        """Text that is held back gives no delta, unless something else must be `told` of its tokens."""
        if self._readers is None:
            return [Delta(content=output.text)] if output.text or told else []
        deltas = [
            ToolCallDelta(
                piece.index,
                FunctionDelta(UNSET if piece.name is None else piece.name, piece.arguments),
                id=UNSET if piece.id is None else piece.id,
                type=UNSET if piece.id is None else "function",
            )
            for piece in self._readers[index].feed(output.text)
        ]
        return [Delta(tool_calls=deltas)] if deltas else ([Delta()] if told else [])

    def _event(
        self,
        index: int,
        delta: Delta,
        logprobs: ChatLogprobs | None = None,
        finish_reason: str | None = None,
        stop_reason: int | str | UnsetType | None = UNSET,
        token_ids: list[int] | UnsetType = UNSET,
    ) -> bytes:
        choice = ChatChunkChoice(index, delta, logprobs, finish_reason, stop_reason, token_ids)
        return sse.event(self._head.of(ChatChunk, choices=[choice], usage=self._head.usage(self._answer)))
