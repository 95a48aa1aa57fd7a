"""What tool_choice of the Responses API is in the words of a chat, in the first turn and in those after it. Pure.

Used by app/responses/chat_fields.py and app/responses/prepare.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from app.calls import ALLOWED_TOOLS
from app.checks import short
from app.responses.tool_box import ToolBox
from app.responses.tool_names import shown_name
from app.schemas.chat import AllowedTool, AllowedTools, NamedFunction, NamedToolChoice, Tool
from app.schemas.responses import ResponseToolChoice, ToolReference
from protocol.errors import BadRequestError

ChatToolChoice = str | NamedToolChoice | None


def first_choice(choice: str | ResponseToolChoice | None, box: ToolBox | None) -> ChatToolChoice:
    """Raises BadRequestError for one that names no tool. Whether they exist is the chat's to say, but for all those of
    one server."""
    if choice is None or isinstance(choice, str):
        return choice
    if choice.type == ALLOWED_TOOLS:
        names = [name for tool in choice.tools or () for name in _names(tool, box)]
        return _allowed(choice.mode or "auto", names)
    names = list(_names(choice, box))
    if choice.type == "mcp" and not choice.name:
        return _allowed("required", names)
    return NamedToolChoice("function", NamedFunction(names[0]))


def later_choice(
    choice: str | ResponseToolChoice | None, first: ChatToolChoice, tools: Sequence[Tool] | None
) -> ChatToolChoice:
    """Of a turn that shows the model these tools. What had to be called has been; what may not be still may not."""
    if tools is None:
        return None
    if not isinstance(choice, ResponseToolChoice) or choice.type != ALLOWED_TOOLS:
        return "none" if choice == "none" else None
    assert isinstance(first, NamedToolChoice), "made by first_choice"
    assert first.allowed_tools is not None, "made by first_choice"
    shown = {tool.function.name for tool in tools}
    allowed = [tool for tool in first.allowed_tools.tools if tool.function.name in shown]
    if not allowed:
        return "none"
    return msgspec.structs.replace(first, allowed_tools=AllowedTools("auto", allowed))


def _allowed(mode: str, names: Sequence[str]) -> NamedToolChoice:
    return NamedToolChoice(
        ALLOWED_TOOLS, allowed_tools=AllowedTools(mode, [AllowedTool(NamedFunction(name)) for name in names])
    )


def _names(tool: ToolReference, box: ToolBox | None) -> Iterator[str]:
    """As the model is shown them."""
    if tool.type not in ("function", "mcp"):
        raise BadRequestError(
            f"tool_choice.type must be function, mcp or {ALLOWED_TOOLS} (of functions and mcp), not {short(tool.type)}",
            param="tool_choice.type",
        )
    if tool.type == "function" and tool.name:
        yield tool.name
    elif tool.type == "mcp" and tool.server_label and tool.name:
        yield (shown_name if box is None else box.name_of)(tool.server_label, tool.name)
    elif tool.type == "mcp" and tool.server_label:
        yield from _names_of_server(tool.server_label, box)
    else:
        raise BadRequestError(f"tool_choice of type {tool.type} names no tool", param="tool_choice")


def _names_of_server(label: str, box: ToolBox | None) -> Sequence[str]:
    shown = [] if box is None else [tool.function.name for tool in box.tools]
    names = [name for name in shown if box and (found := box.find(name)) and found.server_label == label]
    if not names:
        raise BadRequestError(
            f"tool_choice names the MCP server {short(label)}, which has no tools to be called here",
            param="tool_choice",
        )
    return names
