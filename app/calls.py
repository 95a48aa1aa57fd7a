"""Forced tool calls: the schema that makes a model write them, and their way out of its text.

The grammar fixes the text's shape, so that reading it needs no guesses: for a named tool the text is its arguments; for
"required" it is a list of {"name": …, "parameters": {…}}, or one such object if parallel calls are off.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from typing import Any

from attrs import define, frozen

from app.schemas.chat import NamedToolChoice, Tool
from protocol.errors import BadRequestError
from protocol.messages import FinishReason

_BEGIN = re.compile(r'\s*[\[,]?\s*\{\s*"name"\s*:\s*(?P<name>"(?:[^"\\]|\\.)*")\s*,\s*"parameters"\s*:\s*', re.DOTALL)


@frozen
class Calls:
    """How a request forces its calls."""

    schema: dict[str, Any]
    name: str | None
    """Of the tool that is named, None if any may be called."""


def forced_calls(
    tools: Sequence[Tool] | None, choice: str | NamedToolChoice | None, parallel: bool, max_tools: int
) -> Calls | None:
    """None if the model is free to answer in text. Raises BadRequestError for a choice that cannot be met."""
    _check_tools(tools, max_tools)
    if choice is None or choice in ("none", "auto"):
        return None
    if isinstance(choice, str) and choice != "required":
        raise BadRequestError(
            f"tool_choice must be none, auto, required or name a function, not {choice[:60]!r}", param="tool_choice"
        )
    if not tools:
        raise BadRequestError("tool_choice needs tools", param="tool_choice")
    if isinstance(choice, NamedToolChoice):
        named = [tool for tool in tools if tool.function.name == choice.function.name]
        if choice.type != "function" or not named:
            raise BadRequestError(
                f"tool_choice names {choice.function.name[:60]!r}, which is none of the tools", param="tool_choice"
            )
        return Calls(_parameters(named[0]), choice.function.name)
    at = "#/items" if parallel else "#"
    if len(tools) > 1:
        one = {"anyOf": [_call(tool, f"{at}/anyOf/{i}") for i, tool in enumerate(tools)]}
    else:
        one = _call(tools[0], at)
    return Calls({"type": "array", "minItems": 1, "items": one} if parallel else one, None)


def _check_tools(tools: Sequence[Tool] | None, max_tools: int) -> None:
    if tools is None:
        return
    if len(tools) > max_tools:
        raise BadRequestError(f"tools has {len(tools)} entries; at most {max_tools} are taken", param="tools")
    names = [tool.function.name for tool in tools]
    for at, tool in enumerate(tools):
        if tool.type != "function" or not tool.function.name:
            raise BadRequestError(f"tools[{at}] is no function with a name", param=f"tools[{at}]")
    if len(set(names)) != len(names):
        raise BadRequestError("tools has two functions of the same name", param="tools")


def _parameters(tool: Tool) -> dict[str, Any]:
    """Arguments are an object, also where a tool says nothing of them."""
    schema = tool.function.parameters or {}
    return schema if "type" in schema or "$ref" in schema else {"type": "object", **schema}


def _call(tool: Tool, at: str) -> dict[str, Any]:
    parameters = _moved(_parameters(tool), f"{at}/properties/parameters")
    return {
        "type": "object",
        "properties": {"name": {"const": tool.function.name}, "parameters": parameters},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _moved(schema: Any, pointer: str) -> Any:
    """The schema as part of a bigger one: its references are told from the new root."""
    if isinstance(schema, list):
        return [_moved(item, pointer) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: pointer + item[1:]
        if key == "$ref" and isinstance(item, str) and item.startswith("#")
        else _moved(item, pointer)
        for key, item in schema.items()
    }


@define
class ReadCall:
    """A call as far as it has been read."""

    id: str
    name: str
    arguments: str = ""


@frozen
class CallPiece:
    """What is new of a call. Its first piece carries id and name."""

    index: int
    arguments: str
    id: str | None = None
    name: str | None = None


class CallReader:
    """Reads one choice's text as it comes. Pure."""

    def __init__(self, forced: Calls) -> None:
        self._named = forced.name
        self.calls: list[ReadCall] = []
        self._pending = ""
        """Text before a call whose name has not come yet."""
        self._value = _ValueScanner()
        self._inside = False
        self._whole = 0
        """Calls whose arguments are complete."""

    def feed(self, text: str) -> list[CallPiece]:
        """What the text adds to the calls."""
        pieces: list[CallPiece] = []
        while text:
            if self._inside:
                taken = self._value.take(text)
                pieces.append(self._add(text[:taken]))
                text = text[taken:]
                if self._value.complete:
                    self._inside = False
                    self._whole += 1
                    self._pending = ""
            elif self._named is not None:
                if self.calls:
                    break  # blanks after the arguments
                pieces.append(self._start(self._named))
            else:
                self._pending += text
                text = ""
                self._pending = self._pending.lstrip("}") if self.calls else self._pending
                if match := _BEGIN.match(self._pending):
                    pieces.append(self._start(json.loads(match["name"])))
                    text = self._pending[match.end() :]
        return _merged(pieces)

    def finish_reason(self, reason: str) -> str:
        """ "tool_calls" once a whole call stands and nothing was cut."""
        stopped = reason == FinishReason.STOP and self._whole and not self._inside
        return "tool_calls" if stopped else reason

    def _start(self, name: str) -> CallPiece:
        call = ReadCall("call_" + secrets.token_hex(12), name)
        self.calls.append(call)
        self._inside = True
        self._value = _ValueScanner()
        return CallPiece(len(self.calls) - 1, "", call.id, name)

    def _add(self, arguments: str) -> CallPiece:
        self.calls[-1].arguments += arguments
        return CallPiece(len(self.calls) - 1, arguments)


class _ValueScanner:
    """Finds the end of one JSON object or array in text that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.complete = False

    def take(self, text: str) -> int:
        """How many characters still belong to the value."""
        for at, char in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped = char == "\\"
                self._in_string = char != '"'
            elif char == '"':
                self._in_string = True
            elif char in "[{":
                self._depth += 1
            elif char in "]}":
                self._depth -= 1
                if self._depth == 0:
                    self.complete = True
                    return at + 1
        return len(text)


def _merged(pieces: list[CallPiece]) -> list[CallPiece]:
    """One piece per call."""
    merged: dict[int, CallPiece] = {}
    for piece in pieces:
        before = merged.get(piece.index)
        merged[piece.index] = (
            piece
            if before is None
            else CallPiece(piece.index, before.arguments + piece.arguments, before.id, before.name)
        )
    return list(merged.values())
