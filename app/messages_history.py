"""The system prompt and turns of Anthropic's API as the chat API's messages. Used by app/messages_request.py.

What differs: there a turn of the user holds results of tools and text side by side, here each result is a message of
its own; there turns of one role may follow each other; and Claude Code puts system messages between the turns, which
many templates refuse. Such a message becomes text at the end of the user's turn before it or, after the assistant's, of
the one that follows: so a conversation only ever grows at its end, and what was computed for it is found in the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import define, field

from app.checks import short
from app.schemas.chat import FunctionCall, Message, ToolCall
from app.schemas.messages import Block, ResultPart, Turn
from protocol.errors import BadRequestError

ROLES = {"user": "user", "assistant": "assistant", "system": "system", "ctx": "user", "msg": "user"}
"""The last two are Claude Code's own, for what it tells the model of its surroundings."""
_ATTRIBUTION = "x-anthropic-billing-header"
"""Claude Code begins a system prompt with a block of this that differs each time: the cache would never match."""

_MAX_BLOCKS = 16_384
"""In all turns and results together: they are walked through while everybody else waits."""


@define
class _Draft:
    """A message while it may still grow."""

    role: str
    texts: list[str] = field(factory=list)
    reasoning: list[str] = field(factory=list)
    calls: list[ToolCall] = field(factory=list)
    tool_call_id: str | None = None

    def message(self) -> Message:
        return Message(
            self.role,
            "\n".join(self.texts),
            tool_calls=self.calls or None,
            tool_call_id=self.tool_call_id,
            reasoning_content="\n".join(self.reasoning) if self.reasoning else None,
        )


def messages_of(system: str | Sequence[Block] | None, turns: Sequence[Turn]) -> list[Message]:
    """Raises BadRequestError for too many blocks, and for a role, or a block of a kind, that does not belong there."""
    num_blocks = sum(_num_blocks(turn) for turn in turns)
    if num_blocks > _MAX_BLOCKS:
        raise BadRequestError(f"messages has {num_blocks} blocks; at most {_MAX_BLOCKS} are taken", param="messages")
    history = _History(_system_texts(system, "system"))
    for at, turn in enumerate(turns):
        history.add(turn, f"messages[{at}]")
    return [draft.message() for draft in history.end()]


class _History:
    """Messages in the making, and the system's texts that wait for a turn of the user."""

    def __init__(self, system: list[str]) -> None:
        self._drafts = [_Draft("system", system)] if system else []
        self._held: list[str] = []

    def add(self, turn: Turn, at: str) -> None:
        match ROLES.get(turn.role):
            case "system":
                self._add_system(_system_texts(turn.content, f"{at}.content"))
            case "user":
                self._add_user(_blocks(turn), at)
            case "assistant":
                self._release()
                self._drafts.append(_assistant(_blocks(turn), at))
            case _:
                raise BadRequestError(
                    f"{at}.role must be user, assistant or system, not {short(turn.role)}", param=f"{at}.role"
                )

    def end(self) -> list[_Draft]:
        self._release()
        return self._drafts

    def _add_system(self, texts: list[str]) -> None:
        if not self._drafts:
            self._drafts += [_Draft("system", texts)] if texts else []
        elif self._drafts[-1].role == "assistant":
            self._held += texts
        else:
            self._drafts[-1].texts += texts

    def _add_user(self, blocks: Sequence[Block], at: str) -> None:
        """Results come first: templates want them right after the calls."""
        texts: list[str] = []
        for i, block in enumerate(blocks):
            if block.type == "tool_result":
                self._drafts.append(_result(block, f"{at}.content[{i}]"))
            else:
                texts.append(_text(block, f"{at}.content[{i}]"))
        if texts or not blocks:
            if not self._drafts or self._drafts[-1].role != "user":
                self._drafts.append(_Draft("user"))
            self._drafts[-1].texts += texts
        self._drafts[-1].texts += self._held
        self._held = []

    def _release(self) -> None:
        """No turn of the user has come for what is held, so it becomes one."""
        if self._held:
            self._drafts.append(_Draft("user", self._held))
            self._held = []


def _blocks(turn: Turn) -> list[Block]:
    return [Block("text", turn.content)] if isinstance(turn.content, str) else turn.content


def _num_blocks(turn: Turn) -> int:
    blocks = _blocks(turn)
    return len(blocks) + sum(len(block.content) for block in blocks if isinstance(block.content, list))


def _system_texts(content: str | Sequence[Block] | None, at: str) -> list[str]:
    if content is None or isinstance(content, str):
        return [content] if content else []
    texts = [_text(block, f"{at}[{i}]") for i, block in enumerate(content)]
    return [text for text in texts if not text.startswith(_ATTRIBUTION)]


def _assistant(blocks: Iterable[Block], at: str) -> _Draft:
    draft = _Draft("assistant")
    for i, block in enumerate(blocks):
        where = f"{at}.content[{i}]"
        match block.type:
            case "thinking":
                draft.reasoning.append(_given(block.thinking, f"{where}.thinking"))
            case "redacted_thinking":
                pass  # for Anthropic's eyes only
            case "tool_use":
                name = _given(block.name, f"{where}.name")
                draft.calls.append(
                    ToolCall(id=_given(block.id, f"{where}.id"), function=FunctionCall(name, block.input or {}))
                )
            case _:
                draft.texts.append(_text(block, where))
    return draft


def _result(block: Block, at: str) -> _Draft:
    """A failure is told in words: the chat API's results have no flag for it."""
    if block.content is None or isinstance(block.content, str):
        texts = [block.content or ""]
    else:
        texts = [_text(part, f"{at}.content[{i}]") for i, part in enumerate(block.content)]
    if block.is_error:
        texts = ["Error: " + "\n".join(texts)]
    return _Draft("tool", texts, tool_call_id=_given(block.tool_use_id, f"{at}.tool_use_id"))


def _text(block: Block | ResultPart, at: str) -> str:
    if block.type != "text":
        raise BadRequestError(
            f"{at}: this model reads text only; a block of type {short(block.type)} is refused here", param=at
        )
    return _given(block.text, f"{at}.text")


def _given(value: str | None, at: str) -> str:
    if value is None:
        raise BadRequestError(f"{at} is missing", param=at)
    return value
