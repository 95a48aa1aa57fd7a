"""Which tools of a server a request means: those it names, or those that only read."""

from __future__ import annotations

from collections.abc import Sequence

from app.checks import few, short
from app.schemas.responses import McpApproval, McpToolFilter, ResponseTool
from app.tools.mcp_tool import MAX_NAME_LENGTH, MAX_TOOLS, McpTool
from protocol.errors import BadRequestError


def check_filters(tool: ResponseTool, at: str) -> None:
    """Raises BadRequestError; `at` is where in the request it is."""
    _check_names(_allowed_names(tool), f"{at}.allowed_tools")
    approval = tool.require_approval
    if isinstance(approval, str) and approval not in ("always", "never"):
        raise BadRequestError(
            f"{at}.require_approval must be always, never, or an object with these, not {approval[:64]!r}",
            param=f"{at}.require_approval",
        )
    if isinstance(approval, McpApproval):
        for word, which in (("always", approval.always), ("never", approval.never)):
            _check_names(which.tool_names if which else None, f"{at}.require_approval.{word}.tool_names")


def check_allowed(tool: ResponseTool, listed: Sequence[McpTool], at: str) -> None:
    """Raises BadRequestError for an allowed tool that the server has not."""
    known = [each.name for each in listed]
    for name in _allowed_names(tool) or ():
        if name not in known:
            there = f"these are {few(known)}" if known else "it has none"
            raise BadRequestError(
                f"{at}.allowed_tools names {short(name)}, which is none of the tools of the MCP server "
                f"{short(tool.server_label)}: {there}",
                param=f"{at}.allowed_tools",
            )


def is_allowed(tool: McpTool, request: ResponseTool) -> bool:
    """Whether the model is shown it, and may call it."""
    allowed = request.allowed_tools
    if isinstance(allowed, list):
        return tool.name in allowed
    return allowed is None or _matches(tool, allowed)


def needs_approval(tool: McpTool, request: ResponseTool) -> bool:
    """Whether the client is to be asked before each call: unless it has said that it need not."""
    match request.require_approval:
        case "never":
            return False
        case McpApproval(always=always, never=never):
            if always is not None and _names_something(always) and _matches(tool, always):
                return True
            return never is None or not (_names_something(never) and _matches(tool, never))
    return True


def _names_something(which: McpToolFilter) -> bool:
    return which.tool_names is not None or which.read_only is not None


def _matches(tool: McpTool, which: McpToolFilter) -> bool:
    if which.tool_names is not None and tool.name not in which.tool_names:
        return False
    return which.read_only is None or which.read_only == tool.is_read_only


def _allowed_names(tool: ResponseTool) -> Sequence[str] | None:
    allowed = tool.allowed_tools
    return allowed if isinstance(allowed, list) else allowed.tool_names if allowed else None


def _check_names(names: Sequence[str] | None, at: str) -> None:
    if names is None:
        return
    if len(names) > MAX_TOOLS:
        raise BadRequestError(f"{at} has {len(names)} names; at most {MAX_TOOLS} are taken", param=at)
    longest = max(map(len, names), default=0)
    if longest > MAX_NAME_LENGTH:
        raise BadRequestError(f"{at} has a name of {longest} characters; at most {MAX_NAME_LENGTH} are taken", param=at)
