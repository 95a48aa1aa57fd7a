"""Deltas to the body and the chunks of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import define, field, frozen
from msgspec import UNSET, UnsetType

from app import sse
from app.answer import Answer
from app.head import Head
from app.logprobs import chat_logprobs, prompt_logprobs
from app.parts import CallPiece, ChoiceReader, Content, Part, Reasoning
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
from app.schemas.usage import Usage, with_reasoning
from protocol.messages import FinishReason, PositionLogprobs, RequestOutput


@frozen
class ChatForm:
    """What of a request decides the shape of its answer."""

    logprobs: bool
    prompt_logprobs: bool
    return_token_ids: bool
    prompt: list[int]
    reader: Callable[[], ChoiceReader] | None
    """Makes what reads one choice; None if the text is the answer and nothing else."""
    counts_reasoning: bool = False
    """Whether the usage says how many tokens were thoughts."""
    tokens_as_ids: bool = False
    """Log-probabilities name tokens by their ids."""
    prompt_text: str | None = None
    """Told in a whole answer."""
    role: str = "assistant"


@define
class _Call:
    id: str
    name: str
    arguments: list[str]


@define
class _Whole:
    """All deltas of one choice together."""

    content: list[str] = field(factory=list)
    reasoning: list[str] = field(factory=list)
    calls: list[_Call] = field(factory=list)
    logprobs: list[PositionLogprobs] = field(factory=list)
    token_ids: list[int] = field(factory=list)
    finish_reason: str = FinishReason.STOP
    stop_reason: int | str | None = None

    def add(self, part: Part) -> None:
        match part:
            case Content(text):
                self.content.append(text)
            case Reasoning(text):
                self.reasoning.append(text)
            case CallPiece(_, arguments, None, _):
                self.calls[-1].arguments.append(arguments)
            case CallPiece(_, arguments, str(id), name):
                self.calls.append(_Call(id, name or "", [arguments]))

    def message(self, role: str) -> AnswerMessage:
        """What is not there is null or left out; an answer without any text is an empty one."""
        calls = [AnsweredToolCall(call.id, CalledFunction(call.name, "".join(call.arguments))) for call in self.calls]
        is_empty = not self.content and (calls or self.reasoning)
        return AnswerMessage(
            None if is_empty else "".join(self.content),
            role,
            reasoning="".join(self.reasoning) if self.reasoning else UNSET,
            tool_calls=calls or UNSET,
        )


class ChatWriter:
    """Of one request; remembers, per choice, what was told."""

    def __init__(self, head: Head, form: ChatForm, answer: Answer) -> None:
        self._head = head
        self._form = form
        self._answer = answer
        self._begun = [False] * answer.num_choices
        self._plain: dict[tuple[int, str], sse.TextEvents] = {}
        """By choice and field: for deltas that are text and nothing else."""
        make = form.reader
        self._readers = None if make is None else [make() for _ in range(answer.num_choices)]

    def frames(self, outputs: list[tuple[int, RequestOutput]]) -> list[bytes]:
        return [frame for index, output in outputs for frame in self._frames(index, output)]

    def held_back(self) -> list[bytes]:
        return []

    def closing(self) -> list[bytes]:
        if not self._head.include_usage:
            return []
        return [sse.event(self._head.of(ChatChunk, choices=[], usage=self._usage()))]

    async def whole(self) -> ChatCompletion:
        """Receives until every choice has ended."""
        choices = [_Whole() for _ in range(self._answer.num_choices)]
        prompt: list[dict[str, Any] | None] | None = None
        while not self._answer.finished:
            for index, output in await self._answer.receive():
                choice = choices[index]
                if self._readers is None:
                    choice.content.append(output.text)
                else:
                    for part in self._readers[index].feed(output):
                        choice.add(part)
                choice.logprobs += output.logprobs or []
                choice.token_ids += output.token_ids
                if self._form.prompt_logprobs and output.prompt_logprobs is not None:
                    prompt = prompt_logprobs(output.prompt_logprobs)
                if output.finish_reason is not None:
                    choice.finish_reason = self._finish_reason(index, output.finish_reason)
                    choice.stop_reason = output.stop_reason
        return self._head.of(
            ChatCompletion,
            choices=[self._choice(index, choice) for index, choice in enumerate(choices)],
            usage=self._usage(),
            prompt_logprobs=prompt,
            prompt_token_ids=self._form.prompt if self._form.return_token_ids else UNSET,
            prompt_text=UNSET if self._form.prompt_text is None else self._form.prompt_text,
            kv_transfer_params=self._answer.kv_transfer_params(self._head.id),
        )

    def _choice(self, index: int, whole: _Whole) -> ChatChoice:
        return ChatChoice(
            index,
            whole.message(self._form.role),
            chat_logprobs(whole.logprobs, self._form.tokens_as_ids) if self._form.logprobs else None,
            whole.finish_reason,
            whole.stop_reason,
            token_ids=whole.token_ids if self._form.return_token_ids else UNSET,
        )

    def _parts(self, index: int, output: RequestOutput) -> list[Part]:
        if self._readers is None:
            return [Content(output.text)] if output.text else []
        return self._readers[index].feed(output)

    def _finish_reason(self, index: int, reason: str) -> str:
        return reason if self._readers is None else self._readers[index].finish_reason(reason)

    def _usage(self) -> Usage:
        usage = self._answer.usage()
        if self._readers is None or not self._form.counts_reasoning:
            return usage
        return with_reasoning(usage, sum(reader.num_reasoning_tokens for reader in self._readers))

    def _frames(self, index: int, output: RequestOutput) -> list[bytes]:
        if self._begun[index] and self._is_plain(output):
            if self._readers is None:
                return [self._text_event(index, "content", output.text)] if output.text else []
            return self._part_events(index, self._readers[index].feed(output))
        frames = [] if self._begun[index] else [self._event(index, Delta(self._form.role, ""))]
        self._begun[index] = True
        logprobs = None
        if self._form.logprobs and output.logprobs:
            logprobs = chat_logprobs(output.logprobs, self._form.tokens_as_ids)
        token_ids = output.token_ids if self._form.return_token_ids and output.token_ids else UNSET
        for delta in self._deltas(index, output, told=logprobs is not None or token_ids is not UNSET):
            frames.append(self._event(index, delta, logprobs=logprobs, token_ids=token_ids))
            logprobs, token_ids = None, UNSET
        if output.finish_reason is not None:
            reason = self._finish_reason(index, output.finish_reason)
            frames.append(self._event(index, Delta(), finish_reason=reason, stop_reason=output.stop_reason))
        return frames

    def _is_plain(self, output: RequestOutput) -> bool:
        form = self._form
        return output.finish_reason is None and not (
            form.logprobs or form.return_token_ids or self._head.continuous_usage
        )

    def _text_event(self, index: int, field: str, text: str) -> bytes:
        events = self._plain.get((index, field))
        if events is None:
            delta = Delta(content="") if field == "content" else Delta(reasoning="")
            chunk = self._head.of(
                ChatChunk, choices=[ChatChunkChoice(index, delta)], usage=self._head.usage(self._answer)
            )
            events = self._plain[index, field] = sse.TextEvents(chunk, field)
        return events.event(text)

    def _part_events(self, index: int, parts: list[Part]) -> list[bytes]:
        """Of an output with nothing else to tell: a reader's text is as plain as any."""
        if len(parts) == 1 and not isinstance(parts[0], CallPiece):
            part = parts[0]
            return [self._text_event(index, "content" if isinstance(part, Content) else "reasoning", part.text)]
        return [self._event(index, delta) for delta in _deltas(parts)]

    def _deltas(self, index: int, output: RequestOutput, told: bool) -> list[Delta]:
        """Text that is held back gives no delta, unless something else must be `told` of its tokens."""
        deltas = _deltas(self._parts(index, output))
        if deltas or not told:
            return deltas
        return [Delta(content="") if self._readers is None else Delta()]

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
        usage = self._usage() if self._head.continuous_usage else self._head.usage(self._answer)
        transfer = UNSET if finish_reason is None else self._answer.kv_transfer_params(self._head.id)
        return sse.event(self._head.of(ChatChunk, choices=[choice], usage=usage, kv_transfer_params=transfer))


def _deltas(parts: list[Part]) -> list[Delta]:
    """One per part, but for the calls of a run, which are told together."""
    deltas: list[Delta] = []
    calls: list[ToolCallDelta] = []
    for part in parts:
        if isinstance(part, CallPiece):
            if not calls:
                deltas.append(Delta(tool_calls=calls))
            calls.append(_call_delta(part))
        else:
            calls = []
            deltas.append(Delta(content=part.text) if isinstance(part, Content) else Delta(reasoning=part.text))
    return deltas


def _call_delta(piece: CallPiece) -> ToolCallDelta:
    return ToolCallDelta(
        piece.index,
        FunctionDelta(UNSET if piece.name is None else piece.name, piece.arguments),
        id=UNSET if piece.id is None else piece.id,
        type=UNSET if piece.id is None else "function",
    )
