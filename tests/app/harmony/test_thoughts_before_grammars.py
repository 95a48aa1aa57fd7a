"""A grammar holds for what gpt-oss says on its final channel: it may think before that, and has to say when it does."""

from __future__ import annotations

import json

import msgspec
import pytest

from actors.engine.grammar import GrammarCompiler
from actors.grammar.checker import after_thoughts, refuse_invalid, serialised
from app.parts import Content, Reasoning
from protocol.sampling import Grammar, GrammarKind, GrammarSource
from tests.app.harmony.reading import PROMPT, ids, make_reader, outputs, read
from tests.helpers.harmony_vocabulary import gpt_oss, tokenizer_json

THOUGHT = "<|channel|>analysis<|message|>Hm, {12} or 13?<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> GrammarCompiler:
    directory = tmp_path_factory.mktemp("gpt-oss")
    (directory / "tokenizer.json").symlink_to(tokenizer_json())
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [200_002, 199_999, 200_012]}))
    return GrammarCompiler(str(directory), 201_088)


def grammar() -> Grammar:
    schema = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
    source = GrammarSource(GrammarKind.JSON_SCHEMA, schema, gpt_oss().thoughts(ids(PROMPT)))
    assert msgspec.json.decode(msgspec.json.encode(source), type=GrammarSource) == source
    assert hash(source), "it is looked up by"
    assert source.after is not None
    text = after_thoughts(serialised(source), source.after)
    refuse_invalid(text)
    return Grammar(text)


@pytest.mark.parametrize(
    ("text", "num_accepted"),
    [
        (THOUGHT + FINAL + '{"a": 1}', None),
        (FINAL + '{"a": 1}', None),
        ('{"a": 1}', 0),
        (THOUGHT + '{"a": 1}', len(ids(THOUGHT))),
        (THOUGHT + FINAL + "Hello", len(ids(THOUGHT + FINAL))),
        ("<|channel|>commentary", 1),
    ],
)
def test_thoughts_are_free_and_the_final_message_is_not(
    compiler: GrammarCompiler, text: str, num_accepted: int | None
) -> None:
    state, token_ids = compiler.compile(grammar()), ids(text)
    accepted = 0
    for token_id in token_ids:
        if not state.accept(token_id):
            break
        accepted += 1
    assert accepted == (len(token_ids) if num_accepted is None else num_accepted)
    assert state.is_finished == (num_accepted is None)


def test_such_an_answer_is_read_as_any_other() -> None:
    told = outputs([ids(THOUGHT + FINAL + '{"a": 1}<|return|>')])
    assert read(make_reader(), told) == [Reasoning("Hm, {12} or 13?"), Content('{"a": 1}')]


@pytest.mark.parametrize(
    "prompt", [PROMPT + FINAL, PROMPT + FINAL + '{"a"', "<|start|>user<|message|>Hi<|end|>", "odd"]
)
def test_nothing_comes_before_an_answer_that_the_prompt_has_begun(prompt: str) -> None:
    assert gpt_oss().thoughts(ids(prompt)) is None
