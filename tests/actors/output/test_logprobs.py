from __future__ import annotations

import math

import pytest

from actors.output.logprobs import output_logprobs, position_logprobs, prompt_logprobs
from actors.output.vocabulary import Vocabulary
from protocol.messages import Logprob, TokenLogprobs
from tests.helpers.small_tokenizers import FIRST_BYTE_ID, piece_tokenizer

VOCABULARY = Vocabulary(piece_tokenizer())
A, B, EURO = FIRST_BYTE_ID + 0x41, FIRST_BYTE_ID + 0x42, FIRST_BYTE_ID + 0xE2


def test_the_token_that_stands_there_comes_first_with_its_rank():
    position = position_logprobs(VOCABULARY, TokenLogprobs([B, A], [-2.0, -0.5], rank=7))
    assert position.chosen == Logprob(B, "B", b"B", -2.0, 7)
    assert position.top == [Logprob(A, "A", b"A", -0.5, 1)]


def test_the_candidates_have_ranks_from_one():
    position = position_logprobs(VOCABULARY, TokenLogprobs([A, A, B, EURO], [-0.5, -0.5, -1.0, -math.inf], rank=1))
    assert [candidate.rank for candidate in position.top] == [1, 2, 3]
    assert position.top[2].logprob == -math.inf


def test_half_a_character_has_its_true_bytes():
    chosen = position_logprobs(VOCABULARY, TokenLogprobs([EURO], [-1.0], rank=1)).chosen
    assert (chosen.token, chosen.token_bytes) == (r"bytes:\xe2", b"\xe2")


def test_ids_beyond_the_vocabulary_have_no_text():
    assert position_logprobs(VOCABULARY, TokenLogprobs([100_000], [-1.0], rank=1)).chosen.token == ""


def test_the_first_prompt_token_has_none():
    assert prompt_logprobs(VOCABULARY, [None, TokenLogprobs([A], [-1.0], 1)])[0] is None
    assert len(output_logprobs(VOCABULARY, [TokenLogprobs([A], [-1.0], 1)] * 2)) == 2


@pytest.mark.parametrize("position", [TokenLogprobs([], [], 1), TokenLogprobs([A], [], 1)])
def test_a_position_that_contradicts_itself_is_refused(position):
    with pytest.raises(ValueError, match="log-probabilities of"):
        position_logprobs(VOCABULARY, position)
