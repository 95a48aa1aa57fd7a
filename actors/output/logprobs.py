"""The engine's log-probabilities, by token id, with the tokens' text and bytes put to them."""

from __future__ import annotations

from collections.abc import Sequence

from actors.output.vocabulary import Vocabulary
from protocol.messages import Logprob, PositionLogprobs, TokenLogprobs


def position_logprobs(vocabulary: Vocabulary, position: TokenLogprobs) -> PositionLogprobs:
    """One position: the token that stands there, and the candidates in falling order with ranks from 1."""
    ids, values = position.token_ids, position.logprobs
    if not ids or len(ids) != len(values):
        raise ValueError(f"log-probabilities of {len(ids)} tokens with {len(values)} values")
    chosen = _logprob(vocabulary, ids[0], values[0], position.rank)
    top = [_logprob(vocabulary, ids[rank], values[rank], rank) for rank in range(1, len(ids))]
    return PositionLogprobs(chosen, top)


def output_logprobs(vocabulary: Vocabulary, positions: Sequence[TokenLogprobs]) -> list[PositionLogprobs]:
    return [position_logprobs(vocabulary, position) for position in positions]


def prompt_logprobs(vocabulary: Vocabulary, positions: Sequence[TokenLogprobs | None]) -> list[PositionLogprobs | None]:
    """One per prompt token; nothing predicts the first, so that is None."""
    return [None if position is None else position_logprobs(vocabulary, position) for position in positions]


def _logprob(vocabulary: Vocabulary, token_id: int, value: float, rank: int) -> Logprob:
    return Logprob(token_id, vocabulary.token_text(token_id), vocabulary.token_bytes(token_id), value, rank)
