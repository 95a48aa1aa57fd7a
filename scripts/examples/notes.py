"""A server of tools (MCP) that keeps a few notes: one tool looks for them, the other adds one.

    scripts/serve --tool-server "notes=stdio:.venv/bin/python scripts/examples/notes.py"

With `--port 9100` it is reached over HTTP instead, at http://127.0.0.1:9100/mcp, or with `--sse` as well at
http://127.0.0.1:9100/sse. scripts/examples/ask_notes.py has a model use it.
"""

from __future__ import annotations

import argparse
import re
from typing import Annotated

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.tools import Tool
from pydantic import Field

NOTES = [
    "The boat leaves on Friday at seven from pier 4.",
    "The key to the shed lies under the blue flower pot.",
    "Water the tomatoes every second day.",
]


def search_notes(words: Annotated[str, Field(max_length=40)]) -> str:
    """Finds the notes that have one of these words."""
    wanted = _long_words(words)
    found = [note for note in NOTES if wanted & _long_words(note)]
    return "\n".join(found) or "No note has any of these words."


def add_note(text: Annotated[str, Field(pattern=r"^[^.]{1,80}\.$")]) -> str:
    """Keeps a note of one sentence."""
    NOTES.append(text)
    return f"Kept: {text}"


def _long_words(text: str) -> set[str]:
    return {word for word in re.findall(r"\w+", text.lower()) if len(word) > 3}


def _closed(tool: Tool) -> Tool:
    """Takes nothing that it does not name. A grammar holds forced calls to this schema, and a small model needs that:
    it would go on writing arguments of its own."""
    return tool.model_copy(update={"parameters": tool.parameters | {"additionalProperties": False}})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, help="listen there; without, speak over stdin and stdout")
    parser.add_argument("--sse", action="store_true", help="the older transport over HTTP")
    arguments = parser.parse_args()
    tools = [_closed(Tool.from_function(function)) for function in (search_notes, add_note)]
    if arguments.port is None:
        MCPServer("notes", tools=tools, log_level="WARNING").run("stdio")
    else:
        MCPServer("notes", tools=tools).run("sse" if arguments.sse else "streamable-http", port=arguments.port)


if __name__ == "__main__":
    main()
