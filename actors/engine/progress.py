"""What the result of a step means for one sequence: its computed and its new tokens, and whether it ends with them.

The scheduler calls this for each row of a committed step.
"""

from __future__ import annotations

from collections.abc import Callable

from actors.engine.finish import Finish, finish_after_prompt
from actors.engine.sequence import Sequence
from protocol.messages import FinishReason, TokenLogprobs
from protocol.step import Pooled, Row, Sampled

Judge = Callable[[Sequence], Finish | None]
"""Says whether a sequence ends with the token that it has just got."""


def take_result(
    sequence: Sequence,
    row: Row,
    sampled: Sampled | None,
    keeps_kv: bool,
    judge: Judge,
    pooled: Pooled | None = None,
) -> Finish | None:
    """Move the sequence on by what its row computed, and sampled or pooled. None: it goes on.

    Without `keeps_kv` its blocks have gone to others since the row was planned; what came of it is as good as ever.
    """
    if sampled is None:
        if keeps_kv:
            sequence.num_computed_tokens += len(row.token_ids)
        return finish_after_prompt(sequence) if pooled is None else _take_embedding(sequence, pooled)
    sequence.num_pending_tokens -= 1
    if keeps_kv:
        num_rejected = row.num_drafts - sampled.num_accepted
        sequence.num_computed_tokens += len(row.token_ids) - num_rejected
        sequence.num_planned_tokens -= num_rejected
    if row.num_drafts and (finish := _take_drafts(sequence, row, sampled, judge)) is not None:
        return finish
    if sampled.error is not None:
        return Finish(FinishReason.ERROR, error=sampled.error)
    return _take_token(sequence, sampled.token_id, sampled.logprobs, judge)


def _take_embedding(sequence: Sequence, pooled: Pooled) -> Finish:
    if pooled.error is not None:
        return Finish(FinishReason.ERROR, error=pooled.error)
    sequence.embedding = pooled.values
    return Finish(FinishReason.STOP)


def _take_drafts(sequence: Sequence, row: Row, sampled: Sampled, judge: Judge) -> Finish | None:
    """The accepted ones, up to one that ends the sequence: it would have ended there without guessing."""
    drafts = row.token_ids[-row.num_drafts :]
    for index in range(sampled.num_accepted):
        logprobs = sampled.accepted_logprobs[index] if sampled.accepted_logprobs else None
        if (finish := _take_token(sequence, drafts[index], logprobs, judge)) is not None:
            return finish
    return None


def _take_token(sequence: Sequence, token_id: int, logprobs: TokenLogprobs | None, judge: Judge) -> Finish | None:
    sequence.append(token_id, logprobs)
    may_end = token_id in sequence.ending_token_ids or len(sequence.token_ids) >= sequence.max_num_tokens
    is_watched = sequence.grammar is not None or sequence.params.repetition is not None
    return judge(sequence) if may_end or is_watched else None
