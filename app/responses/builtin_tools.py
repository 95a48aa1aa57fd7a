"""OpenAI's own tools, which are MCP servers here: web search is the one that the operator calls browser, the code
interpreter the one called python, as with vLLM. Pure. Used by app/responses/chat_fields.py.
"""

from __future__ import annotations

from app.schemas.responses import ResponseTool

LABELS = {
    "web_search": "browser",
    "web_search_2025_08_26": "browser",
    "web_search_preview": "browser",
    "web_search_preview_2025_03_11": "browser",
    "code_interpreter": "python",
}
"""The type of a tool to the label of its server."""


def as_server(tool: ResponseTool) -> ResponseTool:
    """The same as the MCP server that it is, if it is one. Nobody is asked before its calls: OpenAI does not ask
    either."""
    label = LABELS.get(tool.type)
    return tool if label is None else ResponseTool(type="mcp", server_label=label, require_approval="never")
