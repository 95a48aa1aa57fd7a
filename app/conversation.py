"""A chat request's messages and tools as the plain data that chat templates are written for.

Made by `conversation_of` from the decoded request; rendered by app/render.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from attrs import field, frozen

from app.body import how_often, nests_within
from app.schemas.chat import ContentPart, Message, Tool
from app.schemas.sampling import ResponseFormat
from app.tool_namespace import ToolNamespace
from protocol.errors import BadRequestError

_ARGUMENTS_DEPTH = 100
_MAX_VALUES = 50_000


@frozen
class Conversation:
    messages: Sequence[Message]
    tools: Sequence[Tool] | None = None
    documents: list[dict[str, Any]] | None = None
    template_kwargs: dict[str, Any] = field(factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    """The template writes the special tokens; only odd templates need the tokeniser to add its own."""
    namespaces: Sequence[ToolNamespace] = ()
    """Of those tools that are a server's. Chat templates know no such thing; Harmony does, and what comes next, too."""
    response_format: ResponseFormat | None = None

    def num_bytes(self) -> int:
        """Of everything in it, as JSON: what rendering costs grows with it."""
        return len(self._encoded())

    def check_num_values(self) -> None:
        """Raises BadRequestError if there are more values than a template should be made to walk through, those
        included that are written in the text of a call's arguments. Takes tenths of a second for the biggest bodies."""
        encoded = self._encoded()
        if encoded.count(b",") > _MAX_VALUES and self._num_commas(encoded) > _MAX_VALUES:
            raise BadRequestError(
                f"messages, tools, documents and chat_template_kwargs have more than {_MAX_VALUES} values together",
                param="messages",
            )

    def characters(self) -> str:
        """A text with every character that is in it."""
        others = (self.response_format, [(space.label, space.description) for space in self.namespaces])
        return (self._encoded() + msgspec.json.encode(others)).decode()

    def _encoded(self) -> bytes:
        return msgspec.json.encode((self.messages, self.tools, self.documents, self.template_kwargs))

    def _num_commas(self, encoded: bytes) -> int:
        """Between values; how many there are is one more for each list and object."""
        calls = (call for message in self.messages for call in message.tool_calls or ())
        texts = (call.function.arguments for call in calls if isinstance(call.function.arguments, str))
        return how_often(encoded, b",") + sum(how_often(text.encode(errors="replace"), b",") for text in texts)

    def variables(self) -> dict[str, Any]:
        """Fresh plain data: what the template sees. Raises BadRequestError for what no text model can read."""
        return {
            **self.template_kwargs,
            "messages": [_plain_message(message, at) for at, message in enumerate(self.messages)],
            "tools": [_plain_tool(tool) for tool in self.tools] if self.tools else None,
            "documents": self.documents,
            "add_generation_prompt": self.add_generation_prompt,
        }


def conversation_of(
    messages: Sequence[Message],
    *,
    max_messages: int,
    tools: Sequence[Tool] | None,
    documents: list[dict[str, Any]] | None,
    template_kwargs: dict[str, Any] | None,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
    add_special_tokens: bool | None,
    namespaces: Sequence[ToolNamespace] = (),
    response_format: ResponseFormat | None = None,
) -> Conversation:
    """Raises BadRequestError for an empty or oversized list and for contradictory flags."""
    if not messages:
        raise BadRequestError("messages must not be empty", param="messages")
    if len(messages) > max_messages:
        raise BadRequestError(
            f"messages has {len(messages)} entries; at most {max_messages} are taken", param="messages"
        )
    if continue_final_message and add_generation_prompt:
        raise BadRequestError(
            "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
        )
    return Conversation(
        messages,
        tools,
        documents,
        template_kwargs or {},
        begins_message(add_generation_prompt, continue_final_message),
        bool(continue_final_message),
        bool(add_special_tokens),
        namespaces,
        response_format,
    )


def begins_message(add_generation_prompt: bool | None, continue_final_message: bool | None) -> bool:
    """Whether the answer is a message of its own, and not the rest of the last one."""
    return not continue_final_message if add_generation_prompt is None else add_generation_prompt


def _plain_message(message: Message, at: int) -> dict[str, Any]:
    """Fields that are absent stay absent, except the content: templates concatenate it without asking."""
    plain: dict[str, Any] = {"role": message.role, "content": content_text(message, at)}
    reasoning = message.reasoning_content or message.reasoning
    if reasoning is not None:
        plain["reasoning_content"] = plain["reasoning"] = reasoning
        if not (message.content and message.tool_calls):  # gpt-oss's template takes only one of both before calls
            plain["thinking"] = reasoning
    if message.tool_calls:
        plain["tool_calls"] = [
            {
                "id": call.id,
                "type": call.type,
                "function": {"name": call.function.name, "arguments": _arguments(call.function.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    return plain


def content_text(message: Message, at: int) -> str:
    """Its text, in one piece. Raises BadRequestError for what no text model can read; `at` is its index."""
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    return "\n".join(_part_text(part, at, i) for i, part in enumerate(message.content))


def _part_text(part: str | ContentPart, at: int, i: int) -> str:
    if isinstance(part, str):
        return part
    text = part.refusal if part.type == "refusal" else part.text
    if part.type not in ("text", "input_text", "output_text", "refusal") or text is None:
        raise BadRequestError(
            f"messages[{at}].content[{i}]: this model reads text only; a part of type {part.type[:40]!r} "
            + ("has no text" if part.type == "text" else "is refused"),
            param=f"messages[{at}].content[{i}]",
        )
    return text


def _arguments(arguments: str | dict[str, Any] | None) -> str | dict[str, Any]:
    """Templates expect an object. Arguments that a length limit cut are no JSON: they are told as the text they are,
    so that one cut call does not poison the conversation after it.
    """
    if not isinstance(arguments, str):
        return arguments or {}
    if not arguments:
        return {}
    if not nests_within(arguments.encode(errors="replace"), _ARGUMENTS_DEPTH):
        return arguments
    try:
        found = json.loads(arguments)
    except ValueError:
        return arguments
    return found if isinstance(found, dict) else arguments


def _plain_tool(tool: Tool) -> dict[str, Any]:
    return {"type": tool.type, "function": msgspec.to_builtins(tool.function)}
