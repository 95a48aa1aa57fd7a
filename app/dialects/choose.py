"""Which dialect the served model speaks: as the operator says, or else by its chat template and its vocabulary."""

from __future__ import annotations

from collections.abc import Collection

from app.dialects import harmony, hermes, llama3_json, mistral, qwen3_coder, thinking
from app.dialects.dialect import Dialect
from app.dialects.names import (
    HERMES,
    LLAMA3_JSON,
    MISTRAL,
    NONE,
    OPENAI,
    OPENAI_GPTOSS,
    QWEN3,
    QWEN3_CODER,
    check_parser_names,
)


def choose_dialect(
    tools: str | None, reasoning: str | None, template: str | None, control_tokens: Collection[str]
) -> Dialect:
    """The parsers' names as given by flags; None is to be found out. Raises as `check_parser_names` does."""
    check_parser_names(tools, reasoning)
    template = template or ""
    if OPENAI in (tools, guessed_tools := _guess_tools(template, control_tokens)) or reasoning == OPENAI_GPTOSS:
        named_otherwise = tools not in (None, OPENAI) or reasoning not in (None, OPENAI_GPTOSS)
        if not named_otherwise:
            return Dialect(OPENAI, OPENAI_GPTOSS, frozenset(control_tokens))
    found_tools = tools or (None if guessed_tools == OPENAI else guessed_tools)
    found_reasoning = reasoning or _guess_reasoning(template)
    return Dialect(
        None if found_tools == NONE else found_tools,
        None if found_reasoning == NONE else found_reasoning,
        frozenset(control_tokens),
    )


def _guess_tools(template: str, control_tokens: Collection[str]) -> str | None:
    """A template that does not show tools to the model is given no parser for them."""
    if harmony.CHANNEL in control_tokens and harmony.MESSAGE in control_tokens:
        return OPENAI
    if "tools" not in template:
        return None
    if hermes.OPEN in template:
        return QWEN3_CODER if qwen3_coder.FUNCTION in template else HERMES
    if mistral.OPEN in template or mistral.OPEN in control_tokens:
        return MISTRAL
    return LLAMA3_JSON if llama3_json.TAG in control_tokens else None


def _guess_reasoning(template: str) -> str | None:
    """Only where the marks themselves decide: `deepseek_r1`, which takes text without them for thoughts, has to be
    named."""
    return QWEN3 if thinking.OPEN in template and thinking.CLOSE in template else None
