"""Forced tool calls: the schema that makes a model write them. Read back by app/call_reader.py.

For a named tool the text is its arguments; for "required" it is a list of {"name": …, "parameters": {…}}, or one such
object if parallel calls are off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from attrs import frozen

from app.checks import few
from app.limits import Limits
from app.schemas.chat import NamedToolChoice, Tool
from protocol.errors import BadRequestError

ALLOWED_TOOLS = "allowed_tools"
_MAX_NAME_LENGTH = 256


@frozen
class Calls:
    """How a request forces its calls."""

    schema: dict[str, Any]
    name: str | None
    """Of the tool that is named, None if any may be called."""


def forced_calls(
    tools: Sequence[Tool] | None, choice: str | NamedToolChoice | None, parallel: bool, limits: Limits
) -> Calls | None:
    """None if the model is free to answer in text. Raises BadRequestError for a choice that cannot be met."""
    check_tools(tools, limits.max_tools)
    if isinstance(choice, NamedToolChoice) and choice.type == ALLOWED_TOOLS:
        tools, choice = _allowed(tools or (), choice, limits.max_tools)
    if choice is None or choice in ("none", "auto"):
        return None
    if isinstance(choice, str) and choice != "required":
        raise BadRequestError(
            f"tool_choice must be none, auto, required or name a function, not {choice[:60]!r}", param="tool_choice"
        )
    if not tools:
        raise BadRequestError("tool_choice needs tools", param="tool_choice")
    size = len(msgspec.json.encode(tools))
    if size > limits.max_grammar_bytes:
        raise BadRequestError(
            f"tools has {size} bytes; to force a call, at most {limits.max_grammar_bytes} are taken", param="tools"
        )
    if isinstance(choice, NamedToolChoice):
        if choice.type != "function" or choice.function is None:
            raise BadRequestError(
                f"tool_choice.type must be function or allowed_tools, with what it names, not {choice.type[:60]!r}",
                param="tool_choice",
            )
        named = _tool(tools, choice.function.name)
        return Calls(_parameters(named), named.function.name)
    at = "#/items" if parallel else "#"
    if len(tools) > 1:
        one = {"anyOf": [_call(tool, f"{at}/anyOf/{i}") for i, tool in enumerate(tools)]}
    else:
        one = _call(tools[0], at)
    return Calls({"type": "array", "minItems": 1, "items": one} if parallel else one, None)


def callable_tools(tools: Sequence[Tool] | None, choice: str | NamedToolChoice | None) -> Sequence[Tool]:
    """Those that the model may call of its own accord: what it writes to others is text. Of a choice that
    `forced_calls` has taken."""
    if not tools or choice == "none":
        return ()
    if not isinstance(choice, NamedToolChoice) or choice.allowed_tools is None:
        return tools
    names = {tool.function.name for tool in choice.allowed_tools.tools}
    return [tool for tool in tools if tool.function.name in names]


def _allowed(tools: Sequence[Tool], choice: NamedToolChoice, most: int) -> tuple[Sequence[Tool], str]:
    """Some of the tools, and how they are chosen from. Raises BadRequestError."""
    allowed = choice.allowed_tools
    if allowed is None or not allowed.tools:
        raise BadRequestError("tool_choice allows no tools: allowed_tools.tools is missing", param="tool_choice")
    if allowed.mode not in ("auto", "required"):
        raise BadRequestError(
            f"tool_choice.allowed_tools.mode must be auto or required, not {allowed.mode[:60]!r}", param="tool_choice"
        )
    if len(allowed.tools) > most:
        raise BadRequestError(
            f"tool_choice allows {len(allowed.tools)} tools; at most {most} are taken", param="tool_choice"
        )
    for tool in allowed.tools:
        _tool(tools, tool.function.name)
    return callable_tools(tools, choice), allowed.mode


def _tool(tools: Sequence[Tool], name: str) -> Tool:
    for tool in tools:
        if tool.function.name == name:
            return tool
    names = [tool.function.name for tool in tools]
    there = f": these are {few(names)}" if names else ", for there are none"
    raise BadRequestError(f"tool_choice names {name[:60]!r}, which is none of the tools{there}", param="tool_choice")


def check_tools(tools: Sequence[Tool] | None, max_tools: int) -> None:
    """Raises BadRequestError for too many, for those without a name or with a long one, and for two of one name."""
    if tools is None:
        return
    if len(tools) > max_tools:
        raise BadRequestError(f"tools has {len(tools)} entries; at most {max_tools} are taken", param="tools")
    names = [tool.function.name for tool in tools]
    for at, tool in enumerate(tools):
        if tool.type == "mcp":
            raise BadRequestError(
                f"tools[{at}] is an MCP server, which only POST /v1/responses takes", param=f"tools[{at}].type"
            )
        if tool.type != "function" or not tool.function.name:
            raise BadRequestError(f"tools[{at}] is no function with a name", param=f"tools[{at}]")
        if len(tool.function.name) > _MAX_NAME_LENGTH:
            raise BadRequestError(
                f"tools[{at}].function.name has {len(tool.function.name)} characters; at most {_MAX_NAME_LENGTH} are "
                "taken",
                param=f"tools[{at}]",
            )
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


def _moved(schema: object, pointer: str) -> object:
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
