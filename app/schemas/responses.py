"""POST /v1/responses: the request, its items, and the response object. Events are in app/schemas/response_events.py.

What clients send is read leniently: an item's `type` may be missing, and fields that are not known are passed over.
What is told has every field that OpenAI's clients require.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from app.schemas.sampling import RepetitionDetection, StructuredOutputs

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]

# ---------------------------------------------------------------------- items as they are sent


class InputPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of content: text under any of its names (input_text, output_text, …), or a refusal. Others are refused."""

    type: str
    text: str | None = None
    refusal: str | None = None


class ListedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of an MCP server."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    annotations: dict[str, Any] | None = None


class InputItem(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Any item of a conversation; which fields matter depends on `type`. Items that were told can be sent back."""

    type: str | None = None
    """None: a message."""
    id: str | None = None
    status: str | None = None
    role: str | None = None
    content: str | list[InputPart] | None = None
    """Of a message, and the thoughts of a reasoning item."""
    summary: list[InputPart] | None = None
    encrypted_content: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None
    """Of a function_call_output or an mcp_call."""
    error: str | dict[str, Any] | None = None
    server_label: str | None = None
    tools: list[ListedTool] | None = None
    approval_request_id: str | None = None
    approve: bool | None = None
    reason: str | None = None


# ---------------------------------------------------------------------- the request


class McpToolFilter(msgspec.Struct, frozen=True, omit_defaults=True):
    tool_names: list[str] | None = None
    read_only: bool | None = None


class McpApproval(msgspec.Struct, frozen=True, omit_defaults=True):
    always: McpToolFilter | None = None
    never: McpToolFilter | None = None


class ResponseTool(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A function of the client's, an MCP server, or one of OpenAI's own that is such a server here
    (app/responses/builtin_tools.py). Other types are refused by their name."""

    type: str
    # function
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    # mcp
    server_label: str | None = None
    server_url: str | None = None
    server_description: str | None = None
    connector_id: str | None = None
    headers: dict[str, str] | None = None
    """Never told again."""
    authorization: str | None = None
    """Never told again."""
    allowed_tools: list[str] | McpToolFilter | None = None
    require_approval: str | McpApproval | None = None
    # code_interpreter
    container: str | dict[str, Any] | None = None
    """Told again, and not used."""


class ToolReference(msgspec.Struct, frozen=True, omit_defaults=True):
    """A function, a tool of an MCP server, or all that this server has."""

    type: str
    name: str | None = None
    server_label: str | None = None


class ResponseToolChoice(ToolReference, frozen=True, omit_defaults=True):
    """Or, of type allowed_tools, several of them."""

    mode: str | None = None
    tools: list[ToolReference] | None = None


class TextFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    type: str = "text"
    name: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None
    description: str | None = None


class TextConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    format: TextFormat | None = None
    verbosity: str | None = None
    """Checked, and passed over."""


class ReasoningConfig(msgspec.Struct, frozen=True):
    effort: str | None = None
    summary: str | None = None
    """Checked, and passed over: thoughts are told as they are."""
    generate_summary: str | None = None


class ResponseStreamOptions(msgspec.Struct, frozen=True):
    include_obfuscation: bool | None = None
    """Passed over: there is none."""


class ResponsesRequest(msgspec.Struct, frozen=True, kw_only=True):
    input: str | list[InputItem]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    """Refused: conversations are kept by previous_response_id."""
    prompt: dict[str, Any] | None = None
    """Refused: there are no stored prompts."""
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: str | ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    truncation: str | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    # how tokens are chosen: OpenAI's two, and vLLM's as in chats
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    repetition_detection: RepetitionDetection | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    logit_bias: dict[str, float] | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    stream_interval: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    timeout: float | None = None


# ---------------------------------------------------------------------- items as they are told


class TextTopLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class TextLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TextTopLogprob]


class OutputText(msgspec.Struct, frozen=True, tag_field="type", tag="output_text"):
    text: str
    annotations: list[dict[str, Any]] = []
    logprobs: list[TextLogprob] = []


class ReasoningText(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    text: str


class SummaryText(msgspec.Struct, frozen=True, tag_field="type", tag="summary_text"):
    text: str


ContentPart = OutputText | ReasoningText


class MessageItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[OutputText] = []


class ReasoningItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    id: str
    status: ItemStatus
    summary: list[SummaryText] = []
    content: list[ReasoningText] = []
    encrypted_content: str | None = None


class FunctionCallItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


class McpListToolsItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_list_tools"):
    id: str
    server_label: str
    tools: list[ListedTool] = []
    error: str | None = None


class McpProtocolError(msgspec.Struct, frozen=True, tag_field="type", tag="mcp_protocol_error"):
    code: int
    message: str


class McpToolExecutionError(msgspec.Struct, frozen=True, tag_field="type", tag="mcp_tool_execution_error"):
    content: list[dict[str, Any]]
    """Parts, each with its `type` and `text`; also of what we tell in a tool's place."""

    @property
    def texts(self) -> list[str]:
        return [part["text"] for part in self.content]


def text_error(text: str) -> McpToolExecutionError:
    """What a tool, or we in its place, told the model of a call that failed."""
    return McpToolExecutionError([{"type": "text", "text": text}])


class McpHttpError(msgspec.Struct, frozen=True, tag_field="type", tag="http_error"):
    code: int
    message: str


McpError = McpProtocolError | McpToolExecutionError | McpHttpError


class McpCallItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_call"):
    id: str
    server_label: str
    name: str
    """As the server calls it."""
    arguments: str
    status: Literal["in_progress", "calling", "completed", "incomplete", "failed"]
    output: str | None = None
    error: McpError | None = None
    approval_request_id: str | None = None


class McpApprovalRequestItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_approval_request"):
    id: str
    server_label: str
    name: str
    arguments: str


OutputItem = MessageItem | ReasoningItem | FunctionCallItem | McpListToolsItem | McpCallItem | McpApprovalRequestItem

# ---------------------------------------------------------------------- the response


class InputTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int = 0
    """None is billed for: what is computed is kept as long as there is room."""
    input_tokens_per_turn: list[int] = []
    cached_tokens_per_turn: list[int] = []


class OutputTokensDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int
    tool_output_tokens: int = 0
    """Of what tools told, as far as later turns have read it."""
    output_tokens_per_turn: list[int] = []
    tool_output_tokens_per_turn: list[int] = []


class ResponseUsage(msgspec.Struct, frozen=True):
    """Sums over all turns of the response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(msgspec.Struct, frozen=True):
    code: str
    """One of those that OpenAI's clients know; server_error for all that is not the client's fault."""
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    reason: str


class ToldTextFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    type: str
    name: str | UnsetType = UNSET
    schema: dict[str, Any] | bool | UnsetType = UNSET
    strict: bool | UnsetType = UNSET
    description: str | UnsetType = UNSET


class ToldText(msgspec.Struct, frozen=True):
    format: ToldTextFormat
    verbosity: str | UnsetType = UNSET


class ToldReasoning(msgspec.Struct, frozen=True):
    effort: str | None = None
    summary: str | None = None


class Response(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    created_at: int
    """Unix time in seconds."""
    status: ResponseStatus
    completed_at: int | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    reasoning: ToldReasoning | None = None
    background: bool = False
    store: bool = True
    service_tier: str = "default"
    temperature: float | None = None
    top_p: float | None = None
    text: ToldText
    tool_choice: str | ResponseToolChoice = "auto"
    tools: list[dict[str, Any]] = []
    """As they were sent, without what is secret."""
    top_logprobs: int = 0
    truncation: str = "disabled"
    usage: ResponseUsage | None = None
    """None until the response has ended."""
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, str] = {}
