"""Parts of an answer to the body and the events of Anthropic's API.

An answer is a list of blocks, one after the other: thoughts, text, or a call of a tool. What comes next either belongs
to the block that is open, or ends it and opens another one.
"""

from __future__ import annotations

from typing import Any

import msgspec
from attrs import define, field

from app import sse
from app.answer import Answer
from app.body import nests_within
from app.head import Head
from app.parts import CallPiece, ChoiceReader, Content, Part, Reasoning
from app.schemas.message_events import (
    BlockDelta,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    InputJsonDelta,
    MessageDelta,
    MessageEvent,
    MessageStart,
    MessageStop,
    Ping,
    SignatureDelta,
    Stop,
    TextDelta,
    ThinkingDelta,
)
from app.schemas.messages import (
    AnswerBlock,
    MessagesAnswer,
    MessagesOutputTokensDetails,
    MessagesUsage,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from protocol.messages import FinishReason, RequestOutput

_MAX_INPUT_DEPTH = 100


@define
class _Open:
    """The block that is being told."""

    block: AnswerBlock
    """As it began: empty."""
    texts: list[str] = field(factory=list)
    plain: sse.TextEvents | None = None
    """For deltas of text: all around the text encoded once."""

    def takes(self, part: Part) -> bool:
        """Whether the part belongs to this block."""
        match part:
            case Reasoning():
                return isinstance(self.block, ThinkingBlock)
            case Content():
                return isinstance(self.block, TextBlock)
            case CallPiece():
                return part.id is None and isinstance(self.block, ToolUseBlock)

    def whole(self) -> AnswerBlock:
        text = "".join(self.texts)
        match self.block:
            case TextBlock():
                return TextBlock(text)
            case ThinkingBlock():
                return ThinkingBlock(text)
            case ToolUseBlock():
                return ToolUseBlock(self.block.id, self.block.name, _input(text))


class MessagesWriter:
    """Of one request."""

    def __init__(self, head: Head, reader: ChoiceReader, answer: Answer, *, tells_thoughts: bool) -> None:
        self._head = head
        self._reader = reader
        self._answer = answer
        self._tells_thoughts = tells_thoughts
        self._begun = False
        self._num_blocks = 0
        """That were opened."""
        self._open: _Open | None = None
        self._stop = Stop("end_turn", None)

    # ------------------------------------------------------------------ streamed

    def frames(self, outputs: list[tuple[int, RequestOutput]]) -> list[bytes]:
        frames: list[bytes] = []
        for _, output in outputs:
            if not self._begun:
                self._begun = True
                frames += [_event(MessageStart(self._message([], None))), _event(Ping())]
            for part in self._parts(output):
                frames += self._part_frames(part)
        return frames

    def held_back(self) -> list[bytes]:
        return []

    def closing(self) -> list[bytes]:
        end = MessageDelta(self._stop, self._usage(final=True))
        return [*self._close(), _event(end), _event(MessageStop())]

    def _part_frames(self, part: Part) -> list[bytes]:
        frames: list[bytes] = []
        if self._open is None or not self._open.takes(part):
            frames += self._close()
            self._open = _opened(part)
            frames.append(_event(ContentBlockStart(self._num_blocks, self._open.block)))
            self._num_blocks += 1
        if isinstance(part, Content):
            frames.append(self._text_frame(self._open, part.text))
        elif isinstance(part, Reasoning):
            frames.append(self._delta(ThinkingDelta(part.text)))
        elif part.arguments:
            frames.append(self._delta(InputJsonDelta(part.arguments)))
        return frames

    def _text_frame(self, block: _Open, text: str) -> bytes:
        if block.plain is None:
            block.plain = sse.TextEvents(ContentBlockDelta(self._num_blocks - 1, TextDelta("")), "text")
        return _named("content_block_delta", block.plain.event(text))

    def _delta(self, delta: BlockDelta) -> bytes:
        return _event(ContentBlockDelta(self._num_blocks - 1, delta))

    def _close(self) -> list[bytes]:
        block, self._open = self._open, None
        if block is None:
            return []
        signature = [self._delta(SignatureDelta(""))] if isinstance(block.block, ThinkingBlock) else []
        return [*signature, _event(ContentBlockStop(self._num_blocks - 1))]

    # ------------------------------------------------------------------ whole

    async def whole(self) -> MessagesAnswer:
        """Receives until the answer has ended."""
        blocks: list[_Open] = []
        while not self._answer.finished:
            for _, output in await self._answer.receive():
                for part in self._parts(output):
                    if not blocks or not blocks[-1].takes(part):
                        blocks.append(_opened(part))
                    blocks[-1].texts.append(part.arguments if isinstance(part, CallPiece) else part.text)
        return self._message([block.whole() for block in blocks], self._stop)

    # ------------------------------------------------------------------ both

    def _parts(self, output: RequestOutput) -> list[Part]:
        parts = self._reader.feed(output)
        if output.finish_reason is not None:
            self._stop = _stop(self._reader.finish_reason(output.finish_reason), output.stop_reason)
        return [part for part in parts if self._tells_thoughts or not isinstance(part, Reasoning)]

    def _message(self, content: list[AnswerBlock], stop: Stop | None) -> MessagesAnswer:
        return MessagesAnswer(
            id=self._head.id,
            model=self._head.model,
            content=content,
            stop_reason=None if stop is None else stop.stop_reason,
            stop_sequence=None if stop is None else stop.stop_sequence,
            usage=self._usage(final=stop is not None),
        )

    def _usage(self, *, final: bool) -> MessagesUsage:
        used = self._answer.usage()
        cached = used.prompt_tokens_details.cached_tokens
        thoughts = MessagesOutputTokensDetails(self._reader.num_reasoning_tokens)
        return MessagesUsage(
            input_tokens=used.prompt_tokens - cached,
            cache_read_input_tokens=cached,
            output_tokens=used.completion_tokens,
            output_tokens_details=thoughts if final else msgspec.UNSET,
        )


def _opened(part: Part) -> _Open:
    match part:
        case Reasoning():
            return _Open(ThinkingBlock(""))
        case Content():
            return _Open(TextBlock(""))
        case CallPiece():
            assert part.id is not None, "a call's first piece has its id"
            assert part.name is not None, "and its name"
            return _Open(ToolUseBlock(part.id, part.name, {}))


def _stop(reason: str, matched: int | str | None) -> Stop:
    if reason == "tool_calls":
        return Stop("tool_use", None)
    if reason == FinishReason.LENGTH:
        return Stop("max_tokens", None)
    return Stop("stop_sequence", matched) if isinstance(matched, str) else Stop("end_turn", None)


def _input(arguments: str) -> dict[str, Any]:
    """An object, whatever the model has written."""
    if not arguments:
        return {}
    encoded = arguments.encode(errors="replace")
    if nests_within(encoded, _MAX_INPUT_DEPTH):
        try:
            found = msgspec.json.decode(encoded)
        except msgspec.DecodeError:
            found = None
        if isinstance(found, dict):
            return found
    return {"INVALID_JSON": arguments}


def _event(event: MessageEvent) -> bytes:
    name = type(event).__struct_config__.tag
    assert isinstance(name, str)
    return _named(name, sse.event(event))


def _named(name: str, event: bytes) -> bytes:
    return b"event: " + name.encode() + b"\n" + event
