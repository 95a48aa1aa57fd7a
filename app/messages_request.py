"""A request of Anthropic's API as a ChatRequest: both APIs share what stands between a client and the engine.

Pure. Used by app/routes/messages.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.checks import ranged, short
from app.limits import Limits
from app.messages_history import messages_of
from app.schemas.chat import ChatRequest, FunctionDefinition, Message, NamedFunction, NamedToolChoice, Tool
from app.schemas.messages import (
    ClientTool,
    CountTokensRequest,
    MessagesRequest,
    OutputConfig,
    Thinking,
    ToolChoice,
)
from app.schemas.sampling import JsonSchemaFormat, ResponseFormat
from protocol.errors import BadRequestError

EFFORTS = ("low", "medium", "high", "xhigh", "max")
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
THINKS = {"enabled": True, "adaptive": True, "disabled": False}
DISPLAYS = ("summarized", "omitted")
_SWITCHES = ("enable_thinking", "thinking")
"""What templates call it: Qwen's and GLM's, DeepSeek's and Granite's. A template that has neither never sees it."""


def chat_request(body: MessagesRequest, limits: Limits) -> ChatRequest:
    """Raises BadRequestError for what only Anthropic's form can have wrong; the rest is checked like any chat."""
    _check_stop_sequences(body.stop_sequences or [], limits)
    return ChatRequest(
        **_prompt_fields(body, limits),
        max_tokens=body.max_tokens,
        stream=body.stream,
        stop=body.stop_sequences,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        min_tokens=body.min_tokens,
        ignore_eos=body.ignore_eos,
        seed=body.seed,
        priority=body.priority,
        cache_salt=body.cache_salt,
        timeout=body.timeout,
        response_format=_response_format(body.output_config),
    )


def counted_request(body: CountTokensRequest, limits: Limits) -> ChatRequest:
    """Of which only the prompt matters."""
    return ChatRequest(**_prompt_fields(body, limits))


def _prompt_fields(body: CountTokensRequest, limits: Limits) -> dict[str, Any]:
    if not body.messages:
        raise BadRequestError("messages must not be empty", param="messages")
    if len(body.messages) > limits.max_messages:
        raise BadRequestError(
            f"messages has {len(body.messages)} entries; at most {limits.max_messages} are taken", param="messages"
        )
    if len(body.tools or ()) > limits.max_tools:
        raise BadRequestError(
            f"tools has {len(body.tools or ())} entries; at most {limits.max_tools} are taken", param="tools"
        )
    messages = messages_of(body.system, body.messages)
    choice = body.tool_choice
    return {
        "model": body.model,
        "messages": messages,
        "tools": None if body.tools is None else [_tool(tool, at) for at, tool in enumerate(body.tools)],
        "tool_choice": None if choice is None else _tool_choice(choice),
        "parallel_tool_calls": not (choice and choice.disable_parallel_tool_use),
        "continue_final_message": _is_begun(messages),
        "reasoning_effort": _effort(body.output_config),
        "chat_template_kwargs": _thinking(body.thinking) | (body.chat_template_kwargs or {}),
    }


def _is_begun(messages: Sequence[Message]) -> bool:
    """Whether the client has begun the answer: then it goes on where the last message ends."""
    return bool(messages) and messages[-1].role == "assistant" and not messages[-1].tool_calls


def _tool(tool: ClientTool, at: int) -> Tool:
    if tool.type not in (None, "custom"):
        raise BadRequestError(
            f"tools[{at}].type must be custom, not {short(tool.type)}: tools that the server runs do not exist here",
            param=f"tools[{at}].type",
        )
    return Tool("function", FunctionDefinition(tool.name, tool.description, tool.input_schema, tool.strict))


def _tool_choice(choice: ToolChoice) -> str | NamedToolChoice:
    if choice.type == "tool" and choice.name is not None:
        return NamedToolChoice("function", NamedFunction(choice.name))
    if choice.type == "tool":
        raise BadRequestError("tool_choice.name is missing", param="tool_choice.name")
    if choice.type not in CHOICES:
        raise BadRequestError(
            f"tool_choice.type must be auto, any, tool or none, not {short(choice.type)}", param="tool_choice.type"
        )
    return CHOICES[choice.type]


def _thinking(thinking: Thinking | None) -> dict[str, Any]:
    """Variables of the template. Without the field a template does what it does by default."""
    if thinking is None:
        return {}
    if thinking.type not in THINKS:
        raise BadRequestError(
            f"thinking.type must be enabled, adaptive or disabled, not {short(thinking.type)}", param="thinking.type"
        )
    if thinking.display not in (None, *DISPLAYS):
        raise BadRequestError(
            f"thinking.display must be summarized or omitted, not {short(thinking.display)}", param="thinking.display"
        )
    ranged("thinking.budget_tokens", thinking.budget_tokens, 1, None, 1)
    return dict.fromkeys(_SWITCHES, THINKS[thinking.type])


def _effort(config: OutputConfig | None) -> str | None:
    if config is None or config.effort is None or config.effort in EFFORTS:
        return None if config is None else config.effort
    raise BadRequestError(
        f"output_config.effort must be one of {', '.join(EFFORTS)}, not {short(config.effort)}",
        param="output_config.effort",
    )


def _response_format(config: OutputConfig | None) -> ResponseFormat | None:
    if config is None or config.format is None:
        return None
    if config.format.type != "json_schema":
        raise BadRequestError(
            f"output_config.format.type must be json_schema, not {short(config.format.type)}",
            param="output_config.format.type",
        )
    return ResponseFormat("json_schema", JsonSchemaFormat("answer", config.format.schema))


def _check_stop_sequences(sequences: Sequence[str], limits: Limits) -> None:
    """As the chat API checks `stop`, under the name that the client knows."""
    if len(sequences) > limits.max_stop:
        raise BadRequestError(
            f"stop_sequences has {len(sequences)} strings; at most {limits.max_stop} are taken", param="stop_sequences"
        )
    for at, sequence in enumerate(sequences):
        if not 1 <= len(sequence) <= limits.max_stop_length:
            raise BadRequestError(
                f"stop_sequences[{at}] has {len(sequence)} characters; 1 to {limits.max_stop_length} are taken",
                param=f"stop_sequences[{at}]",
            )
