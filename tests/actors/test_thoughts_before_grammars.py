"""Free text before what a grammar says: a reasoning model thinks first."""

from __future__ import annotations

import pytest
from llguidance import LLMatcher, LLTokenizer

from protocol.errors import GrammarError
from protocol.sampling import GrammarKind, GrammarSource, Thoughts
from tests.helpers.grammars import checker

BYTES = LLTokenizer("byte")
BEGUN, MAYBE = Thoughts("", "</think>"), Thoughts("<think>", "</think>")
NUMBER = {
    GrammarKind.JSON_SCHEMA: '{"type": "integer"}',
    GrammarKind.REGEX: "[0-9]+",
    GrammarKind.LARK: "start: digit+\ndigit: /[0-9]/",
}


def accepts(source: GrammarSource, text: str) -> bool:
    matcher = LLMatcher(BYTES, checker().check(source).text, log_level=0)
    assert not matcher.get_error()
    data = list(text.encode())
    return bool(matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting())


@pytest.mark.parametrize("kind", list(GrammarKind))
def test_the_grammar_holds_after_the_first_closing_mark(kind: GrammarKind) -> None:
    begun = GrammarSource(kind, NUMBER[kind], BEGUN)
    assert accepts(begun, 'I think é\n"</thin" 12</think>12')
    assert accepts(begun, "</think>1")
    assert not accepts(begun, "12")
    assert not accepts(begun, "Hm.</think>one</think>1")
    maybe = GrammarSource(kind, NUMBER[kind], MAYBE)
    assert accepts(maybe, "<think>Hm.</think>12")
    assert accepts(maybe, "12")
    assert not accepts(maybe, "Hm.</think>12")


def test_a_wrong_grammar_is_refused_as_ever() -> None:
    with pytest.raises(GrammarError):
        checker().check(GrammarSource(GrammarKind.REGEX, "[0-9", BEGUN))
