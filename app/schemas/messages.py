"""POST /v1/messages and /v1/messages/count_tokens, in Anthropic's shapes: the requests and the answers. The events of a
streamed answer are in app/schemas/message_events.py.

Fields that trillm does not know (metadata, cache_control, service_tier, …) are ignored.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

# ---------------------------------------------------------------------- requests


class ResultPart(msgspec.Struct, frozen=True):
    """A part of what a tool has answered."""

    type: str
    text: str | None = None


class Block(msgspec.Struct, frozen=True):
    """One of text, thinking, redacted_thinking, tool_use and tool_result, each with its own fields."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[ResultPart] | None = None
    is_error: bool | None = None


class Turn(msgspec.Struct, frozen=True):
    role: str
    content: str | list[Block]


class ClientTool(msgspec.Struct, frozen=True):
    """A tool that the client runs. `type` is absent or "custom"."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: str | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, frozen=True):
    type: str
    budget_tokens: int | None = None
    """Taken, and not held to."""
    display: str | None = None


class JsonOutputFormat(msgspec.Struct, frozen=True):
    type: str
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True):
    effort: str | None = None
    format: JsonOutputFormat | None = None


class CountTokensRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What of a request makes its prompt. `chat_template_kwargs` is vLLM's."""

    model: str
    messages: list[Turn]
    system: str | list[Block] | None = None
    tools: list[ClientTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesRequest(CountTokensRequest, frozen=True, kw_only=True):
    """The fields after top_k are not Anthropic's; they mean what they mean in the chat API."""

    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    timeout: float | None = None
    """Seconds that the request may take, from when its body is here."""


# ---------------------------------------------------------------------- answers


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    thinking: str
    signature: str = ""
    """Nobody signs here."""


class ToolUseBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]
    """Arguments that are no JSON object, because a limit cut them, are under INVALID_JSON as the text they are."""


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class MessagesOutputTokensDetails(msgspec.Struct, frozen=True):
    thinking_tokens: int


class MessagesUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt's tokens are input_tokens and cache_read_input_tokens together."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: MessagesOutputTokensDetails | UnsetType = UNSET


class MessagesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessagesUsage


class CountTokensAnswer(msgspec.Struct, frozen=True):
    input_tokens: int
