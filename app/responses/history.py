"""Items of a conversation to the messages that chat templates are written for.

Pure. One rule for all turns: what the model sees of a turn is the same whether its items have just been told, come from
a store, or are sent back by the client; so prompts of later turns begin as those before them did.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from app.responses.tool_names import NameOf, shown_name
from app.schemas.chat import FunctionCall, Message, ToolCall
from app.schemas.responses import InputItem, InputPart
from protocol.errors import BadRequestError

_REFUSED = "The user has not allowed this call."


def chat_messages(instructions: str | None, items: Sequence[InputItem], name_of: NameOf = shown_name) -> list[Message]:
    """`items`: checked ones, the oldest first. `name_of`: under which name the model knows a server's tool.

    Raises BadRequestError for the output of a call that is not there."""
    writer = _Messages(instructions, name_of)
    for item in items:
        writer.add(item)
    return writer.whole()


def without_orphans(items: Sequence[InputItem]) -> list[InputItem]:
    """Of a conversation whose beginning was cut off: without what answers calls that were cut off with it."""
    calls: set[str] = set()
    kept: list[InputItem] = []
    for item in items:
        if (called := _called(item)) is not None:
            calls.add(called)
        if (answered := _answered(item)) is not None and answered not in calls:
            continue
        kept.append(item)
    return kept


def num_droppable(items: Sequence[InputItem]) -> int:
    """How many of the oldest may be cut off: not the last one, nor the call that it answers."""
    answered = _answered(items[-1])
    if answered is not None:
        for at in reversed(range(len(items))):
            if _called(items[at]) == answered:
                return at
    return len(items) - 1


def _called(item: InputItem) -> str | None:
    """What an answer to this item names, if it is a call."""
    match item.type:
        case "function_call":
            return item.call_id
        case "mcp_approval_request":
            return item.id
    return None


def _answered(item: InputItem) -> str | None:
    """The call that it is an answer to."""
    match item.type:
        case "function_call_output":
            return item.call_id
        case "mcp_approval_response":
            return item.approval_request_id
    return None


class _Messages:
    """What an assistant says, thinks and calls in a row is one message; the output of a call ends it."""

    def __init__(self, instructions: str | None, name_of: NameOf) -> None:
        self._name_of = name_of
        self._messages: list[Message] = []
        self._system: list[str] = [instructions] if instructions else []
        """Templates take one system message, at the beginning: all that come before anything else."""
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[ToolCall] = []
        self._names: dict[str, str] = {}
        """Of calls, by their ids."""
        self._asked: set[str] = set()
        """Ids of approval requests, whose calls the model has made there."""

    def add(self, item: InputItem) -> None:
        match item.type:
            case "message":
                self._add_message(item)
            case "reasoning":
                if self._calls or self._content:
                    self._close()
                self._reasoning.append(_text(item.content) or _text(item.summary))
            case "function_call":
                self._add_call(item.call_id or "", item.name or "", item.arguments)
            case "function_call_output":
                self._add_output(item.call_id or "", _text(item.output))
            case "mcp_approval_request":
                self._asked.add(item.id or "")
                self._add_mcp_call(item)
            case "mcp_approval_response":
                if not item.approve:
                    told = _REFUSED if item.reason is None else f"{_REFUSED} {item.reason}"
                    self._add_output(_short_id(item.approval_request_id), told)
            case "mcp_call":
                self._add_called(item)

    def whole(self) -> list[Message]:
        self._close()
        if not self._system:
            return self._messages
        return [Message("system", "\n\n".join(self._system)), *self._messages]

    def _add_message(self, item: InputItem) -> None:
        text = _text(item.content)
        if item.role == "assistant":
            if self._calls or self._content:
                self._close()
            self._content.append(text)
            return
        self._close()
        if item.role == "user":
            self._messages.append(Message("user", text))
        elif self._messages:
            self._messages.append(Message("system", text))
        else:
            self._system.append(text)

    def _add_call(self, call_id: str, name: str, arguments: str | None) -> None:
        self._names[call_id] = name
        self._calls.append(ToolCall(id=call_id, function=FunctionCall(name, arguments)))

    def _add_mcp_call(self, item: InputItem) -> None:
        self._add_call(_short_id(item.id), self._name_of(item.server_label or "", item.name or ""), item.arguments)

    def _add_called(self, item: InputItem) -> None:
        call_id = item.id
        if item.approval_request_id in self._asked:
            call_id = item.approval_request_id
        else:
            self._add_mcp_call(item)
        self._add_output(_short_id(call_id), told_to_model(item))

    def _add_output(self, call_id: str, output: str) -> None:
        if call_id not in self._names:
            raise BadRequestError(
                f"No tool call found for the function call output with call_id {call_id[:80]!r}", param="input"
            )
        self._close()
        self._messages.append(Message("tool", output, name=self._names[call_id], tool_call_id=call_id))

    def _close(self) -> None:
        if not (self._reasoning or self._content or self._calls):
            return
        self._messages.append(
            Message(
                "assistant",
                "".join(self._content),
                tool_calls=self._calls or None,
                reasoning_content="\n".join(self._reasoning) or None,
            )
        )
        self._reasoning, self._content, self._calls = [], [], []


def told_to_model(call: InputItem) -> str:
    """What the model reads of an mcp_call's result."""
    if call.error is None:
        return _text(call.output)
    if isinstance(call.error, str):
        return f"Error: {call.error}"
    content = call.error.get("content", call.error.get("message"))
    if isinstance(content, list):
        texts = [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
        content = "\n".join(texts)
    return f"Error: {content if isinstance(content, str) and content else 'the call failed'}"


def _text(content: str | list[InputPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join((part.refusal if part.type == "refusal" else part.text) or "" for part in content)


def _short_id(item_id: str | None) -> str:
    """An id for a call of an MCP tool: some templates take only nine letters and digits."""
    return hashlib.sha256((item_id or "").encode(errors="replace")).hexdigest()[:9]
