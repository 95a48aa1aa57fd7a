"""What a tool answers, as the text that the model reads and the item of the call tells."""

from __future__ import annotations

import msgspec
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

MAX_RESULT_LENGTH = 2**19
"""Characters. No model that is served here reads more at once."""


def result_text(result: CallToolResult, limit: int = MAX_RESULT_LENGTH) -> str:
    """Texts are joined, other content is named; what has neither tells its structured content as JSON. Cut at
    `limit` characters, with a note that it was."""
    text = "\n".join(map(_text, result.content))
    if not result.content and result.structured_content is not None:
        text = msgspec.json.encode(result.structured_content).decode()
    if len(text) > limit:
        return f"{text[:limit]}\n[cut: the tool answered {len(text)} characters; {limit} are told]"
    return text


def _text(content: ContentBlock) -> str:
    match content:
        case TextContent():
            return content.text
        case ImageContent():
            return f"[image: {content.mime_type}, {_num_bytes(content.data)} bytes]"
        case AudioContent():
            return f"[audio: {content.mime_type}, {_num_bytes(content.data)} bytes]"
        case ResourceLink():
            return f"[resource: {content.uri}]"
        case EmbeddedResource(resource=BlobResourceContents() as blob):
            return f"[resource: {blob.uri}, {_num_bytes(blob.blob)} bytes]"
        case EmbeddedResource(resource=TextResourceContents() as resource):
            return resource.text
    raise AssertionError("the package knows no other content")


def _num_bytes(base64: str) -> int:
    return len(base64) * 3 // 4 - base64[-2:].count("=")
