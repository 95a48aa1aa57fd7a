"""What tool_choice of the Responses API is in the words of a chat, in the first turn and in those after it. Pure.

Used by app/responses/chat_fields.py and app/responses/prepare.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from app.calls import ALLOWED_TOOLS
from app.checks import few, short
from app.responses.tool_box import ToolBox
from app.schemas.chat import AllowedTool, AllowedTools, NamedFunction, NamedToolChoice, Tool
from app.schemas.responses import ResponseToolChoice, ToolReference
from protocol.errors import BadRequestError

ChatToolChoice = str | NamedToolChoice | None


def first_choice(
    choice: str | ResponseToolChoice | None, functions: Sequence[str], box: ToolBox | None
) -> ChatToolChoice:
    """`functions`: names of the client's own. Raises BadRequestError for a choice that names no tool, or one that there
    is not, in the client's words."""
    if choice == "required" and not functions and box is not None and not box.tools:
        raise BadRequestError(f"tool_choice needs tools, and there are none{_why_none(box)}", param="tool_choice")
    if choice is None or isinstance(choice, str):
        return choice
    if choice.type == ALLOWED_TOOLS:
        names = [name for tool in choice.tools or () for name in _names(tool, functions, box)]
        return _allowed(choice.mode or "auto", names)
    names = list(_names(choice, functions, box))
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


def _names(tool: ToolReference, functions: Sequence[str], box: ToolBox | None) -> Iterator[str]:
    """As the model is shown them."""
    if tool.type not in ("function", "mcp"):
        raise BadRequestError(
            f"tool_choice.type must be function, mcp or {ALLOWED_TOOLS} (of functions and mcp), not {short(tool.type)}",
            param="tool_choice.type",
        )
    if tool.type == "function" and tool.name:
        yield _function(tool.name, functions, box)
    elif tool.type == "mcp" and tool.server_label:
        shown = _tools_of_server(tool.server_label, box)
        if tool.name and tool.name not in shown:
            raise BadRequestError(
                f"tool_choice names {short(tool.name)}, which is none of the tools of the MCP server "
                f"{short(tool.server_label)}: these are {few(list(shown))}",
                param="tool_choice",
            )
        yield from [shown[tool.name]] if tool.name else shown.values()
    else:
        raise BadRequestError(f"tool_choice of type {tool.type} names no tool", param="tool_choice")


def _function(name: str, functions: Sequence[str], box: ToolBox | None) -> str:
    if name in functions or (box is not None and box.find(name) is not None):
        return name
    there = f": these are {few(functions)}" if functions else ", which has none"
    raise BadRequestError(
        f"tool_choice names {short(name)}, which is none of the functions in tools{there}", param="tool_choice"
    )


def _tools_of_server(label: str, box: ToolBox | None) -> dict[str, str]:
    """As the server calls them, to how the model is shown them; at least one."""
    shown: dict[str, str] = {}
    for tool in [] if box is None else box.tools:
        found = None if box is None else box.find(tool.function.name)
        if found is not None and found.server_label == label:
            shown[found.name] = tool.function.name
    if not shown:
        raise BadRequestError(
            f"tool_choice names the MCP server {short(label)}, which has no tools to be called here"
            f"{'' if box is None else _why_none(box, label)}",
            param="tool_choice",
        )
    return shown


def _why_none(box: ToolBox, label: str | None = None) -> str:
    """What the servers, or that one, could not be asked for."""
    errors = [each.error for each in box.listings if each.error and label in (None, each.server_label)]
    return f" ({'; '.join(errors)})" if errors else ""
