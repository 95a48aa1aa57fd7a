"""Log-probabilities and ranks against a plain reference."""

from __future__ import annotations

import math

import torch

from gpu.logprobs import token_logprobs


def test_chosen_token_stands_first_and_the_best_follow_in_falling_order():
    logits = torch.tensor([[1.0, 3.0, 2.0, 3.0], [0.0, -math.inf, 5.0, 4.0]])
    first, second = token_logprobs(logits, [2, 1], [2, 3])
    expected = logits.log_softmax(dim=1)
    assert first.token_ids[0] == 2
    assert set(first.token_ids[1:]) == {1, 3}
    assert first.rank == 3
    torch.testing.assert_close(torch.tensor(first.logprobs), expected[0][first.token_ids])
    assert second.token_ids == [1, 2, 3, 0]
    assert second.logprobs[0] == -math.inf
    assert second.rank == 4


def test_zero_gives_only_the_token_itself_and_equals_share_their_rank():
    logits = torch.tensor([[2.0, 2.0, 1.0]])
    (found,) = token_logprobs(logits, [1], [0])
    assert found.token_ids == [1]
    assert len(found.logprobs) == 1
    assert found.rank == 1


def test_more_than_the_vocabulary_gives_the_whole_vocabulary():
    (found,) = token_logprobs(torch.zeros(1, 5), [4], [20])
    assert sorted(found.token_ids[1:]) == [0, 1, 2, 3, 4]
