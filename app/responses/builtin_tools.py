"""OpenAI's own tools, which are MCP servers here: web search is the one that the operator calls browser, the code
interpreter the one called python, as with vLLM. Pure. Used by app/responses/prepare.py and
app/tools/servers.py.
"""

from __future__ import annotations

from app.schemas.responses import ResponseTool
from protocol.errors import BadRequestError

LABELS = {
    "web_search": "browser",
    "web_search_2025_08_26": "browser",
    "web_search_preview": "browser",
    "web_search_preview_2025_03_11": "browser",
    "code_interpreter": "python",
}
"""The type of a tool to the label of its server."""


def missing_server(tool: ResponseTool, at: str) -> BadRequestError:
    """Of a request's tool that is a server which the operator has not named, in the client's words. `at`: where it
    is."""
    if (label := LABELS.get(tool.type)) is not None:
        return BadRequestError(
            f"{at}: {tool.type} is the MCP server that the operator calls {label}, and this server has none "
            f"(--tool-server {label}=URL)",
            param=at,
        )
    label = (tool.server_label or "")[:64]
    return BadRequestError(
        f"{at}.server_url is missing, and this server has no MCP server with the label {label!r} "
        f"(--tool-server {label}=URL)",
        param=f"{at}.server_url",
    )


def as_server(tool: ResponseTool) -> ResponseTool:
    """The same as the MCP server that it is, if it is one. Nobody is asked before its calls: OpenAI does not ask
    either."""
    label = LABELS.get(tool.type)
    return tool if label is None else ResponseTool(type="mcp", server_label=label, require_approval="never")
