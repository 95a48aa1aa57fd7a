"""When a sequence ends. The scheduler asks after each output token; nothing here is remembered."""

from __future__ import annotations

from typing import NamedTuple

from actors.engine.repetition import repeats_itself
from actors.engine.sequence import Sequence
from protocol.messages import FinishReason


class Finish(NamedTuple):
    """How a sequence ends; the fields of EngineCoreOutput with these names."""

    reason: FinishReason
    stop_reason: int | None = None
    error: str | None = None


def finish_after_token(sequence: Sequence, max_model_len: int) -> Finish | None:
    """Judge the newest output token, moving the grammar on by it. None: the sequence goes on.

    EOS goes before stop tokens, these before the length, and the grammar's own end comes last, after a repetition; an
    error of the grammar is the request's error, because without it the next token could be anything.
    """
    return (
        _stop_token(sequence)
        or _grammar_error(sequence)
        or _length(sequence, max_model_len)
        or _repetition(sequence)
        or _grammar(sequence)
    )


def finish_after_prompt(sequence: Sequence) -> Finish | None:
    """Judge a sequence whose last computed token was not followed by a sampled one."""
    is_prompt_done = sequence.num_computed_tokens >= sequence.num_prompt_tokens
    if sequence.params.max_tokens == 0 and is_prompt_done:
        assert sequence.request.pooling is None, f"the runner gave no vector for {sequence!r}"
        return Finish(FinishReason.LENGTH)
    return None


def _stop_token(sequence: Sequence) -> Finish | None:
    params = sequence.params
    if sequence.num_output_tokens <= params.min_tokens:
        return None
    token_id = sequence.token_ids[-1]
    if token_id in params.eos_token_ids:
        return Finish(FinishReason.STOP)
    if token_id in params.stop_token_ids:
        return Finish(FinishReason.STOP, stop_reason=token_id)
    return None


def _grammar_error(sequence: Sequence) -> Finish | None:
    grammar = sequence.grammar
    if grammar is None or grammar.accept(sequence.token_ids[-1]):
        return None
    return Finish(FinishReason.ERROR, error=grammar.error)


def _length(sequence: Sequence, max_model_len: int) -> Finish | None:
    if sequence.num_output_tokens >= sequence.params.max_tokens or sequence.num_tokens >= max_model_len:
        return Finish(FinishReason.LENGTH)
    return None


def _repetition(sequence: Sequence) -> Finish | None:
    params = sequence.params
    if params.repetition is None or sequence.num_output_tokens <= params.min_tokens:
        return None
    output = sequence.token_ids[sequence.num_prompt_tokens :]
    return Finish(FinishReason.REPETITION) if repeats_itself(output, params.repetition) else None


def _grammar(sequence: Sequence) -> Finish | None:
    grammar = sequence.grammar
    if grammar is None:
        return None
    if grammar.is_finished:
        return Finish(FinishReason.STOP)
    grammar.bitmask()  # kept by the grammar for the next step; made here, where its failure can still be told
    if grammar.error is not None:
        return Finish(FinishReason.ERROR, error=grammar.error)
    return None
