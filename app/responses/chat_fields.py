"""A request of the Responses API as a ChatRequest, so that everything between a client and the engine is shared.

Pure. Used by app/responses/prepare.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import attrs
import msgspec

from app.chat import PreparedChat
from app.checks import short
from app.engine import Prompt
from app.limits import Limits
from app.responses.builtin_tools import as_server
from app.responses.tool_box import ToolBox
from app.responses.tool_choice import first_choice
from app.schemas.chat import ChatRequest, FunctionDefinition, Message, Tool
from app.schemas.responses import ReasoningConfig, ResponsesRequest, ResponseTool, TextConfig
from app.schemas.sampling import JsonSchemaFormat, ResponseFormat
from protocol.errors import BadRequestError

LOGPROBS = "message.output_text.logprobs"
_SAME = (
    *("model", "stream", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "repetition_detection", "seed", "stop", "stop_token_ids", "ignore_eos", "min_tokens"),
    *("logit_bias", "skip_special_tokens", "include_stop_str_in_output", "structured_outputs", "priority"),
    *("cache_salt", "request_id", "timeout", "user", "parallel_tool_calls", "stream_interval"),
)
_SWITCHES = ("enable_thinking", "thinking")
"""What templates call it. A template that has neither never sees it."""
_NAMES = {"messages": "input", "response_format": "text.format", "max_completion_tokens": "max_output_tokens"}
_NAME = re.compile(rf"\b({'|'.join(_NAMES)})\b")


def chat_request(body: ResponsesRequest, messages: list[Message], box: ToolBox | None) -> ChatRequest:
    """`box`: the tools of MCP servers, if the request has any. Raises BadRequestError."""
    tools = [_function(tool) for tool in body.tools or () if tool.type == "function"]
    choice = first_choice(body.tool_choice, [tool.function.name for tool in tools], box)
    if box is not None:
        _check_names(body.tools or (), box)
        tools += box.tools
    wants_logprobs = LOGPROBS in (body.include or ())
    given = msgspec.structs.asdict(body)
    same = {name: given[name] for name in _SAME if given[name] is not None}
    return ChatRequest(
        **same,
        messages=messages,
        tools=tools or None,
        tool_choice=choice,
        response_format=_response_format(body.text),
        logprobs=wants_logprobs or None,
        top_logprobs=(body.top_logprobs or 0) if wants_logprobs else None,
        **_reasoning(body.reasoning, body.chat_template_kwargs),
    )


def check_tool_types(tools: Sequence[ResponseTool], limits: Limits) -> None:
    """Raises BadRequestError for too many, and for those of a type that does not exist here."""
    if len(tools) > limits.max_tools:
        raise BadRequestError(f"tools has {len(tools)} entries; at most {limits.max_tools} are taken", param="tools")
    for at, tool in enumerate(map(as_server, tools)):
        if tool.type not in ("function", "mcp"):
            raise BadRequestError(
                f"tools[{at}].type must be function or mcp, not {short(tool.type)}: such tools do not exist here",
                param=f"tools[{at}].type",
            )
        needed = "name" if tool.type == "function" else "server_label"
        if not (tool.name if tool.type == "function" else tool.server_label):
            raise BadRequestError(f"tools[{at}].{needed} is missing", param=f"tools[{at}].{needed}")


def bounded(chat: PreparedChat, max_output_tokens: int | None) -> PreparedChat:
    """With at most so many tokens for the answer. It is a bound and not a wish: where the context has less room, the
    answer is cut there, as with OpenAI. Raises BadRequestError for min_tokens above it."""
    if max_output_tokens is None:
        return chat
    return attrs.evolve(chat, prompts=[_bounded(prompt, max_output_tokens) for prompt in chat.prompts])


def _bounded(prompt: Prompt, most: int) -> Prompt:
    params = prompt.sampling_params
    if params.min_tokens > most:
        raise BadRequestError(f"min_tokens {params.min_tokens} is above max_output_tokens {most}", param="min_tokens")
    most = min(most, params.max_tokens)
    return attrs.evolve(prompt, sampling_params=msgspec.structs.replace(params, max_tokens=most))


def renamed(error: BadRequestError) -> BadRequestError:
    """The same in the names of this API's fields."""
    if error.param not in _NAMES and not _NAME.search(error.message):
        return error
    found = type(error)(
        _NAME.sub(lambda match: _NAMES[match[0]], error.message),
        param=None if error.param is None else _NAMES.get(error.param, error.param),
        code=error.code,
    )
    return found


def _function(tool: ResponseTool) -> Tool:
    return Tool("function", FunctionDefinition(tool.name or "", tool.description, tool.parameters, tool.strict))


def _check_names(tools: Sequence[ResponseTool], box: ToolBox) -> None:
    """A call has nothing but the name: whose it is must be plain."""
    for at, tool in enumerate(tools):
        if tool.type == "function" and (found := box.find(tool.name or "")) is not None:
            raise BadRequestError(
                f"tools[{at}]: the function {short(tool.name)} is named as the model is shown the tool "
                f"{short(found.name)} of the MCP server {short(found.server_label)}: give it another name",
                param=f"tools[{at}].name",
            )


def _response_format(text: TextConfig | None) -> ResponseFormat | None:
    form = None if text is None else text.format
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return ResponseFormat("json_object")
    if form.type != "json_schema":
        raise BadRequestError(
            f"text.format.type must be text, json_object or json_schema, not {short(form.type)}",
            param="text.format.type",
        )
    if form.schema is None:
        raise BadRequestError("text.format.schema is missing", param="text.format.schema")
    return ResponseFormat("json_schema", JsonSchemaFormat(form.name, form.schema, form.strict))


def _reasoning(reasoning: ReasoningConfig | None, kwargs: dict[str, Any] | None) -> dict[str, Any]:
    """effort "none" turns thoughts off where a template can do that."""
    effort = None if reasoning is None else reasoning.effort
    if effort == "none":
        return {"chat_template_kwargs": dict.fromkeys(_SWITCHES, False) | (kwargs or {})}
    return {"reasoning_effort": effort, "chat_template_kwargs": kwargs}
