"""The dialects by vLLM's names. Imports no parser, so that app/settings.py may know them."""

from __future__ import annotations

from protocol.errors import BadRequestError

NONE = "none"
HERMES, LLAMA3_JSON, MISTRAL = "hermes", "llama3_json", "mistral"
PYTHONIC, QWEN3_CODER, OPENAI = "pythonic", "qwen3_coder", "openai"
TOOL_PARSERS = (HERMES, LLAMA3_JSON, MISTRAL, PYTHONIC, QWEN3_CODER, OPENAI)
DEEPSEEK_R1, QWEN3, OPENAI_GPTOSS = "deepseek_r1", "qwen3", "openai_gptoss"
REASONING_PARSERS = (DEEPSEEK_R1, QWEN3, OPENAI_GPTOSS)


def check_parser_names(tools: str | None, reasoning: str | None) -> None:
    """Raises BadRequestError for names that do not exist, and for two that cannot go together."""
    for flag, name, known in (
        ("--tool-call-parser", tools, TOOL_PARSERS),
        ("--reasoning-parser", reasoning, REASONING_PARSERS),
    ):
        if name is not None and name not in (*known, NONE):
            raise BadRequestError(f"{flag} must be one of {', '.join(known)} or {NONE}, not {name[:60]!r}")
    if tools is not None and reasoning is not None and (tools == OPENAI) != (reasoning == OPENAI_GPTOSS):
        raise BadRequestError(
            f"--tool-call-parser {tools} and --reasoning-parser {reasoning}: {OPENAI} and {OPENAI_GPTOSS} are one "
            "format, and go with each other only"
        )
