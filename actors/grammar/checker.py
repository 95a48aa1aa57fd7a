"""Builds a grammar as the engine will, with limits. Runs in a grammar checker's process; in tests, anywhere."""

from __future__ import annotations

from typing import final

import msgspec
from llguidance import LLMatcher

from actors.engine.grammar import GrammarCompiler
from protocol.errors import GrammarError
from protocol.sampling import Grammar, GrammarKind, GrammarSource, Mark, Thoughts

JSON_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""At most one blank after a comma or a colon: free whitespace lets a model fill its whole answer with it."""
MAX_COMPLAINT_CHARS = 200
"""Longer ones repeat the whole grammar, or say what llguidance looks like inside."""
_ANSWER = "answer_after_thoughts"


@final
class GrammarChecker:
    """For one checkpoint's tokeniser, which is read at the first check."""

    def __init__(self, checkpoint: str) -> None:
        self._compiler = GrammarCompiler(checkpoint)

    def check(self, source: GrammarSource) -> Grammar:
        """The grammar for the engine, built once to its first mask. Raises GrammarError with one line for the client;
        what is beyond all measure ends the process."""
        try:
            text = serialised(source)
            refuse_invalid(text)
            if source.after is not None:
                text = after_thoughts(text, source.after)
                refuse_invalid(text)
            grammar = Grammar(text)
            self._compiler.compile(grammar)
        except (ValueError, TypeError, RecursionError) as error:
            raise GrammarError(one_line(str(error))) from error
        return grammar


def serialised(source: GrammarSource) -> str:
    """llguidance's form of the grammar. Raises ValueError."""
    match source.kind:
        case GrammarKind.JSON_SCHEMA:
            return str(LLMatcher.grammar_from_json_schema(source.text, overrides=JSON_OPTIONS))
        case GrammarKind.REGEX:
            return str(LLMatcher.grammar_from_regex(source.text))
        case GrammarKind.LARK:
            return str(LLMatcher.grammar_from_lark(source.text))


def refuse_invalid(grammar: str) -> None:
    """Raises GrammarError with llguidance's complaint."""
    if complaint := LLMatcher.validate_grammar(grammar):
        raise GrammarError(one_line(complaint))


def after_thoughts(grammar: str, thoughts: Thoughts) -> str:
    """A valid grammar in llguidance's form, with free text before what it says."""
    # To llguidance whatever begins with a brace is JSON, also what a client sends as Lark.
    is_json = grammar.lstrip().startswith("{")
    whole = msgspec.json.decode(grammar) if is_json else {"grammars": [{"lark_grammar": grammar}]}
    first, *others = whole["grammars"]
    grammars = [{"lark_grammar": _thoughts_and_answer(thoughts)}, {**first, "name": _ANSWER}, *others]
    return msgspec.json.encode({**whole, "grammars": grammars}).decode()


def _thoughts_and_answer(thoughts: Thoughts) -> str:
    """In Lark. Only a text, not a token, can be a suffix."""
    if not isinstance(thoughts.closing, str):
        body, free = f"free {_mark(thoughts.closing)}", "free"
    else:
        body, free = "free", f"free[suffix={_mark(thoughts.closing)}]"
    count = ""
    if thoughts.opening != "":
        body, count = f"{_mark(thoughts.opening)} {body}", "?"
    answer = f"{_mark(thoughts.answer)} @{_ANSWER}"
    return f"start: thoughts{count} {answer}\nthoughts: {body}\n{free}: /(?s:.*)/\n"


def _mark(mark: Mark) -> str:
    """As a Lark grammar names it."""
    if isinstance(mark, tuple):
        return " ".join(map(_mark, mark))
    return f"<[{mark}]>" if isinstance(mark, int) else msgspec.json.encode(mark).decode()


def one_line(complaint: str) -> str:
    """llguidance's words, short enough to tell."""
    text = " ".join(complaint.split())
    if text.startswith("NoExtension"):
        return "the grammar allows no text at all"
    return text if len(text) <= MAX_COMPLAINT_CHARS else text[:MAX_COMPLAINT_CHARS] + " …"
