"""Grammars bind, end where they may end, and fail one request at a time."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import msgspec
import pytest
from llguidance import LLMatcher

from actors.engine.grammar import GrammarCompiler, GrammarState
from protocol.messages import FinishReason
from protocol.sampling import Grammar
from tests.helpers.dummy_checkpoint import ENDOFTEXT, IM_END, VOCAB_SIZE, dummy_tokenizer, write_dummy_checkpoint
from tests.helpers.scheduling import Bench, a_config, a_request

TOKENIZER = dummy_tokenizer()
EOS = {TOKENIZER.token_to_id(IM_END), TOKENIZER.token_to_id(ENDOFTEXT)}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dummy_checkpoint(tmp_path_factory.mktemp("dummy"))


@pytest.fixture(scope="module")
def compiler(checkpoint: Path) -> GrammarCompiler:
    return GrammarCompiler(str(checkpoint), VOCAB_SIZE)


def regex(pattern: str) -> Grammar:
    return Grammar(LLMatcher.grammar_from_regex(pattern))


def schema(value: object) -> Grammar:
    return Grammar(LLMatcher.grammar_from_json_schema(json.dumps(value), overrides={"whitespace_flexible": False}))


def token(text: str) -> int:
    (token_id,) = TOKENIZER.encode(text).ids
    return token_id


def allowed(state: GrammarState) -> set[int]:
    bits = int.from_bytes(state.bitmask(), "little")
    return {token_id for token_id in range(bits.bit_length()) if bits >> token_id & 1}


@pytest.mark.parametrize("vocab_size", [VOCAB_SIZE, VOCAB_SIZE + 1, VOCAB_SIZE + 88, VOCAB_SIZE - 100])
def test_the_mask_has_a_bit_for_each_token_of_the_model(checkpoint: Path, vocab_size: int):
    """Embeddings are often padded beyond what the tokeniser knows; now and then it knows more than they hold."""
    state = GrammarCompiler(str(checkpoint), vocab_size).compile(regex("(a|b)+"))
    assert len(state.bitmask()) == (vocab_size + 31) // 32 * 4
    assert {token("a"), token("b")} <= allowed(state)
    assert not any(token_id >= VOCAB_SIZE for token_id in allowed(state))


def test_only_what_the_grammar_allows_is_allowed(compiler: GrammarCompiler):
    state = compiler.compile(regex("ab"))
    assert allowed(state) == {token("a")}
    assert state.accept(token("a"))
    assert allowed(state) == {token("b")}


def test_end_of_sequence_is_allowed_exactly_where_the_grammar_may_end(compiler: GrammarCompiler):
    state = compiler.compile(regex("ab?"))
    assert not allowed(state) & EOS
    assert state.accept(token("a"))
    assert not state.is_finished
    assert allowed(state) == EOS | {token("b")}


@pytest.mark.parametrize("eos", sorted(EOS))
def test_end_of_sequence_finishes_for_requests_that_ignore_it(compiler: GrammarCompiler, eos: int):
    state = compiler.compile(regex("a*"))
    assert state.accept(token("a"))
    assert not state.is_finished
    assert state.accept(eos)
    assert state.is_finished
    assert state.error is None


def test_a_grammar_is_finished_where_nothing_may_follow(compiler: GrammarCompiler):
    state = compiler.compile(schema({"type": "boolean"}))
    for token_id in TOKENIZER.encode("true").ids:
        assert not state.is_finished
        assert state.accept(token_id)
    assert state.is_finished
    assert allowed(state) == EOS


def test_special_tokens_are_no_text(compiler: GrammarCompiler):
    assert not allowed(compiler.compile(regex("[^x]*"))) - EOS & {0, 1, 2}


def test_a_rejected_token_is_an_error_that_stays(compiler: GrammarCompiler):
    state = compiler.compile(regex("ab"))
    assert not state.accept(token("b"))
    assert state.error is not None
    assert "doesn't satisfy the grammar" in state.error
    assert "\n" not in state.error
    assert not state.accept(token("a"))
    assert not state.is_finished


def test_a_token_outside_the_vocabulary_is_an_error(compiler: GrammarCompiler):
    state = compiler.compile(regex("ab"))
    assert not state.accept(100_000)
    assert "out of range" in str(state.error)


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar(""),
        Grammar("{}"),
        Grammar("no grammar"),
        Grammar(LLMatcher.grammar_from_lark("start: missing")),
        regex("["),
        regex("(a"),
        Grammar(LLMatcher.grammar_from_json_schema('{"type": "str"}')),
        Grammar(LLMatcher.grammar_from_json_schema('{"enum": []}')),
    ],
)
def test_a_grammar_that_cannot_be_followed_is_refused_in_one_line(compiler: GrammarCompiler, grammar: Grammar):
    for _ in range(2):  # nothing of the first failure is kept
        with pytest.raises(ValueError, match=r"^[^\n]{3,310}$"):
            compiler.compile(grammar)
    assert compiler.compile(regex("ab")).error is None


def test_states_of_one_grammar_are_independent(compiler: GrammarCompiler):
    first, second = compiler.compile(regex("ab")), compiler.compile(regex("ab"))
    first.accept(token("a"))
    assert allowed(second) == {token("a")}


def test_threads_may_compile_at_once(checkpoint: Path):
    compiler = GrammarCompiler(str(checkpoint), VOCAB_SIZE)
    states: list[GrammarState] = []
    threads = [threading.Thread(target=lambda: states.append(compiler.compile(regex("ab")))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [allowed(state) for state in states] == [{token("a")}] * 4


def test_truncation_in_the_tokeniser_file_does_not_matter(checkpoint: Path, tmp_path: Path):
    content = json.loads((checkpoint / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": IM_END}}))
    state = GrammarCompiler(str(tmp_path), VOCAB_SIZE).compile(regex("a"))
    assert state.accept(token("a"))
    assert allowed(state) == {TOKENIZER.token_to_id(IM_END)}


def follow(state: GrammarState, text: str) -> None:
    """As an engine does, which asks for each mask."""
    for one in text:
        assert token(one) in allowed(state)
        assert state.accept(token(one))


def test_forced_tokens_are_foreseen_up_to_the_last_and_with_what_follows_each(compiler: GrammarCompiler):
    state, plain = compiler.compile(regex("a?wxyz")), compiler.compile(regex("a?wxyz"))
    assert state.look_ahead(9) == []
    assert state.accept(token("a"))
    assert plain.accept(token("a"))
    foreseen = state.look_ahead(9)
    assert [one.token_id for one in foreseen] == [token("w"), token("x"), token("y")]
    assert [one.token_id for one in state.look_ahead(2)] == [token("w"), token("x")]
    for one in foreseen:
        assert state.accept(one.token_id)
        assert plain.accept(one.token_id)
        assert state.bitmask() == one.bitmask == plain.bitmask()
    assert state.look_ahead(9) == []
    assert state.accept(token("z"))
    assert state.is_finished


def test_a_foreseen_token_that_did_not_come_is_forgotten(compiler: GrammarCompiler):
    state = compiler.compile(regex("(a[,;]bc)+"))
    follow(state, "a,bca")
    assert [one.token_id for one in state.look_ahead(3)] == [token(text) for text in ",bc"]
    follow(state, ";")
    assert allowed(state) == {token("b")}
    follow(state, "bca")
    assert state.look_ahead(3) == []  # not a habit any more


def test_looking_ahead_sets_no_error_and_moves_nothing(compiler: GrammarCompiler):
    state = compiler.compile(regex("(ab)+"))
    for _ in range(3):
        state.look_ahead(9)
    assert state.error is None
    assert allowed(state) == {token("a")}


@pytest.mark.parametrize("ignore_eos", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_constrained_requests_give_valid_json_in_fewer_steps_and_with_the_same_tokens(
    checkpoint: Path, compiler: GrammarCompiler, temperature: float, ignore_eos: bool
):
    grammar = schema(
        {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 12}, "fresh": {"type": "boolean"}},
            "required": ["name", "fresh"],
            "additionalProperties": False,
        }
    )
    sizes = {"num_blocks": 64, "block_size": 16, "max_model_len": 256, "max_num_seqs": 2}
    benches = [Bench(checkpoint, a_config(jumps_ahead=jumps_ahead, **sizes)) for jumps_ahead in (False, True)]
    for bench in benches:
        for index in range(8):
            request = a_request(str(index), [40 + index], max_tokens=200, temperature=temperature, seed=index)
            wish = {"grammar": grammar, "eos_token_ids": [] if ignore_eos else sorted(EOS)}
            params = msgspec.structs.replace(request.sampling_params, **wish)
            bench.add(msgspec.structs.replace(request, sampling_params=params), compiler.compile(grammar))
        bench.run()
    plain, jumping = benches
    assert len(jumping.plans) < 0.9 * len(plain.plans)
    for index in range(8):
        assert jumping.tokens(str(index)) == plain.tokens(str(index))
        assert jumping.reason(str(index)) is plain.reason(str(index)) is FinishReason.STOP
        value = json.loads(TOKENIZER.decode(jumping.tokens(str(index))))
        assert sorted(value) == ["fresh", "name"]
