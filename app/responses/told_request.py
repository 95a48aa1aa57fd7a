"""What a response tells of its request: the same fields, with their defaults, and without what is secret. Pure.

Used by app/responses/prepare.py.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from app.chat import PreparedChat
from app.schemas.responses import (
    Response,
    ResponsesRequest,
    ResponseTool,
    TextConfig,
    ToldReasoning,
    ToldText,
    ToldTextFormat,
)

_SECRET = ("headers", "authorization")


def told_response(body: ResponsesRequest, chat: PreparedChat, *, stores: bool) -> Response:
    """As it begins. Temperature and top_p are those that the answer is sampled with."""
    params = chat.prompts[0].sampling_params
    return Response(
        id=chat.head.id,
        created_at=chat.head.created,
        status="queued" if body.background else "in_progress",
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        model=chat.head.model,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        reasoning=_reasoning(body),
        background=bool(body.background),
        store=stores,
        temperature=params.temperature,
        top_p=params.top_p,
        text=_text(body.text),
        tool_choice="auto" if body.tool_choice is None else body.tool_choice,
        tools=[_tool(tool) for tool in body.tools or ()],
        top_logprobs=body.top_logprobs or 0,
        truncation=body.truncation or "disabled",
        user=body.user,
        safety_identifier=body.safety_identifier,
        prompt_cache_key=body.prompt_cache_key,
        metadata=body.metadata or {},
    )


def _reasoning(body: ResponsesRequest) -> ToldReasoning:
    return ToldReasoning() if body.reasoning is None else ToldReasoning(body.reasoning.effort, body.reasoning.summary)


def _text(text: TextConfig | None) -> ToldText:
    verbosity = UNSET if text is None or text.verbosity is None else text.verbosity
    form = None if text is None else text.format
    if form is None or form.type != "json_schema":
        return ToldText(ToldTextFormat("text" if form is None else form.type), verbosity)
    return ToldText(
        ToldTextFormat(
            "json_schema",
            form.name or "answer",
            UNSET if form.schema is None else form.schema,
            bool(form.strict),
            UNSET if form.description is None else form.description,
        ),
        verbosity,
    )


def _tool(tool: ResponseTool) -> dict[str, Any]:
    if tool.type == "function":
        return {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "strict": bool(tool.strict),
        }
    told: dict[str, Any] = msgspec.to_builtins(tool)
    if tool.server_url is not None:
        told["server_url"] = tool.server_url.partition("?")[0]  # some servers take their keys there
    return {name: value for name, value in told.items() if name not in _SECRET}
