"""The tools of one MCP server, for models that know tools by their server and not only by one flat name.

Made by app/tools for a response; app/harmony shows and reads calls by it, chat templates see only the flat names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen


@frozen
class ToolNamespace:
    label: str
    """What the request calls the server."""
    tools: Mapping[str, str]
    """From the name that the model is shown elsewhere, and that its calls are told by, to the server's own."""
    description: str | None = None
    """What the server says of itself."""
    text_parameter: str | None = None
    """Of a server with one tool that takes one text and nothing else: what that parameter is called."""


def text_parameter(schemas: list[dict[str, Any]]) -> str | None:
    """`schemas` are those of all tools of a server."""
    if len(schemas) != 1:
        return None
    properties = schemas[0].get("properties")
    if not isinstance(properties, dict) or len(properties) != 1:
        return None
    [(name, schema)] = properties.items()
    return name if isinstance(schema, dict) and schema.get("type") == "string" else None
