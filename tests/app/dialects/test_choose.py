"""Which dialect a model is taken to speak."""

from __future__ import annotations

import pytest

from app.dialects.choose import choose_dialect
from app.settings import Settings
from protocol.errors import BadRequestError

QWEN3 = "{% if tools %}<tool_call>{% endif %}<think>\n\n</think>"
HARMONY = ("<|start|>", "<|channel|>", "<|message|>")


@pytest.mark.parametrize(
    ("template", "tokens", "tools", "reasoning"),
    [
        (QWEN3, (), "hermes", "qwen3"),
        ("{% if tools %}<tool_call><function=name>", (), "qwen3_coder", None),
        ("{{ tools }}[TOOL_CALLS]", (), "mistral", None),
        ("{{ tools }}[AVAILABLE_TOOLS]", ("[TOOL_CALLS]",), "mistral", None),
        ("{{ tools }}", ("<|python_tag|>",), "llama3_json", None),
        ("{{ messages }}", ("<|python_tag|>", "[TOOL_CALLS]"), None, None),
        ("{{ messages }}", HARMONY, "openai", "openai_gptoss"),
        (None, (), None, None),
    ],
)
def test_the_template_and_the_vocabulary_show_it(
    template: str | None, tokens: tuple[str, ...], tools: str | None, reasoning: str | None
) -> None:
    found = choose_dialect(None, None, template, tokens)
    assert (found.tools, found.reasoning) == (tools, reasoning)


def test_what_is_named_counts() -> None:
    found = choose_dialect("mistral", "deepseek_r1", QWEN3, ())
    assert (found.tools, found.reasoning) == ("mistral", "deepseek_r1")
    found = choose_dialect("none", "none", QWEN3, ())
    assert (found.tools, found.reasoning) == (None, None)
    found = choose_dialect("none", None, "", HARMONY)
    assert (found.tools, found.reasoning) == (None, None)
    found = choose_dialect(None, "openai_gptoss", "", ())
    assert (found.tools, found.reasoning) == ("openai", "openai_gptoss")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"tool_call_parser": "hermès"}, r"--tool-call-parser must be one of hermes, .* or none, not 'hermès'"),
        ({"reasoning_parser": "hermes"}, r"--reasoning-parser must be one of deepseek_r1, .* or none, not 'hermes'"),
        ({"tool_call_parser": "openai", "reasoning_parser": "qwen3"}, "go with each other only"),
    ],
)
def test_a_name_that_is_none_is_refused_at_the_start(fields: dict[str, str], told: str) -> None:
    with pytest.raises(BadRequestError, match=told):
        Settings(**fields)
