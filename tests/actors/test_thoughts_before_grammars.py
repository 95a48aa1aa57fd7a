"""Free text before what a grammar says: a reasoning model thinks first."""

from __future__ import annotations

from pathlib import Path

import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer

from actors.engine.grammar import GrammarCompiler
from actors.grammar.checker import GrammarChecker
from protocol.errors import GrammarError
from protocol.sampling import GrammarKind, GrammarSource, Thoughts
from tests.helpers.dummy_checkpoint import VOCAB_SIZE, write_dummy_checkpoint
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


@pytest.mark.parametrize("is_special", [True, False])
@pytest.mark.parametrize("opening", [VOCAB_SIZE, ""])
def test_marks_that_are_tokens_are_told_by_their_ids(tmp_path: Path, is_special: bool, opening: int | str) -> None:
    """To llguidance, tokens of angle brackets are no text, whether or not the tokeniser calls them special."""
    path = write_dummy_checkpoint(tmp_path) / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.add_tokens([AddedToken(mark, special=is_special) for mark in ("<think>", "</think>")])
    tokenizer.save(str(path))
    source = GrammarSource(GrammarKind.REGEX, "[0-9]+", Thoughts(opening, VOCAB_SIZE + 1))
    state = GrammarCompiler(str(tmp_path)).compile(GrammarChecker(str(tmp_path)).check(source))
    token_ids = tokenizer.encode("<think>Hm, so.</think>12", add_special_tokens=False).ids
    assert all(state.accept(token_id) for token_id in (token_ids if opening else token_ids[1:]))
    assert not state.copy().accept(VOCAB_SIZE + 1)


@pytest.mark.parametrize(
    ("kind", "text"),
    [(GrammarKind.REGEX, "[0-9"), *((GrammarKind.LARK, text) for text in ("{", "{}", '{"grammars": []}', '"x"'))],
)
def test_a_wrong_grammar_is_refused_as_ever(kind: GrammarKind, text: str) -> None:
    complaints = set()
    for after in (None, BEGUN):
        with pytest.raises(GrammarError) as caught:
            checker().check(GrammarSource(kind, text, after))
        complaints.add(caught.value.message)
    assert len(complaints) == 1


def test_llguidances_own_form_is_one_too() -> None:
    source = GrammarSource(GrammarKind.LARK, ' {"grammars": [{"lark_grammar": "start: /[0-9]/"}]}', BEGUN)
    assert accepts(source, "Hm.</think>1")
    assert not accepts(source, "Hm.</think>one")
