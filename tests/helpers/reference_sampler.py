"""The sampler as plainly as it can be said, row by row: what gpu/sampler's choices are held to, to the last token.

Order: grammar bitmask, allowed tokens and logit_bias, bad words, min_tokens; repetition, frequency and presence
penalties; temperature; top_k; top_p; min_p; Gumbel-max.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from gpu.noise import gumbel_noise, noise_key
from gpu.sampler import LARGEST, NOT_FINITE, NOTHING_ALLOWED, Choice, SamplingRow
from gpu.sequence_slot import SequenceSlot


def choose(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> list[Choice]:
    """Choose a token per row of `logits` [rows, vocab] float32, which is overwritten."""
    broken = ~logits.amax(dim=1).isfinite()
    for row_logits, row in zip(logits, rows, strict=True):
        _constrain(row_logits, row)
        _penalise(row_logits, row.slot)
    token_ids = logits.argmax(dim=1)
    best = logits.gather(1, token_ids.unsqueeze(1)).squeeze(1)
    blocked = best == -math.inf
    drawn = [i for i, row in enumerate(rows) if row.slot.params.temperature > 0.0]
    if drawn:
        token_ids[drawn] = _draw(logits[drawn], best[drawn], [rows[i] for i in drawn])
    fetched = torch.stack((token_ids, broken, blocked)).tolist()
    return [
        Choice(-1, NOT_FINITE) if is_broken else Choice(-1, NOTHING_ALLOWED) if is_blocked else Choice(token_id)
        for token_id, is_broken, is_blocked in zip(*fetched, strict=True)
    ]


def _constrain(logits: torch.Tensor, row: SamplingRow) -> None:
    """Forbid and bias tokens of one row, [vocab], in place."""
    slot = row.slot
    if row.grammar_bitmask is not None:
        bits = np.unpackbits(np.frombuffer(row.grammar_bitmask, dtype=np.uint8), bitorder="little")[: len(logits)]
        logits[: len(bits)].masked_fill_(torch.from_numpy(bits == 0).to(logits.device), -math.inf)
        logits[len(bits) :] = -math.inf
    if slot.bias is not None:
        logits += slot.bias
    if slot.params.bad_words_token_ids:
        logits[slot.bad_next_tokens()] = -math.inf
    if len(slot.output_token_ids) < slot.params.min_tokens:
        logits[torch.tensor(slot.ending, dtype=torch.int64)] = -math.inf


def _penalise(logits: torch.Tensor, slot: SequenceSlot) -> None:
    """Make tokens that were there before less likely, [vocab], in place."""
    params = slot.params
    if slot.seen is not None:
        penalised = torch.where(logits > 0, logits / params.repetition_penalty, logits * params.repetition_penalty)
        torch.where(slot.seen, penalised, logits, out=logits)
        logits.clamp_(max=LARGEST)  # a tiny penalty must not make infinity of a large logit
    if slot.output_counts is not None:
        logits -= params.frequency_penalty * slot.output_counts
        logits -= params.presence_penalty * (slot.output_counts > 0)


def _draw(logits: torch.Tensor, best: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    """Draw one token per row of [rows, vocab]; `best` [rows] is each row's maximum. Returns [rows] int64."""
    params = [row.slot.params for row in rows]
    device = logits.device

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, device=device).unsqueeze(1)

    # Measured from the maximum, so that no temperature makes anything but 0 of the best and less of the others.
    scaled = (logits - best.unsqueeze(1)) / column([p.temperature for p in params])
    if limited := [i for i, p in enumerate(params) if 0 < p.top_k < logits.shape[1]]:
        scaled[limited] = _keep_top_k(scaled[limited], [params[i].top_k for i in limited])
    if limited := [i for i, p in enumerate(params) if p.top_p < 1.0]:
        scaled[limited] = _keep_top_p(scaled[limited], column([params[i].top_p for i in limited]))
    if limited := [i for i, p in enumerate(params) if p.min_p > 0.0]:
        floor = column([math.log(params[i].min_p) for i in limited])
        scaled[limited] = scaled[limited].masked_fill(scaled[limited] < floor, -math.inf)
    keys = [noise_key(row.slot.params.seed, row.position) for row in rows]
    return (scaled + gumbel_noise(torch.tensor(keys), logits.shape[1])).argmax(dim=1)


def _keep_top_k(scaled: torch.Tensor, top_k: list[int]) -> torch.Tensor:
    """[rows, vocab] with everything below the k-th largest at -inf (equals of the k-th stay)."""
    largest = scaled.topk(max(top_k), dim=1).values
    smallest = largest[torch.arange(len(top_k), device=scaled.device), [k - 1 for k in top_k]]
    return scaled.masked_fill(scaled < smallest.unsqueeze(1), -math.inf)


def _keep_top_p(scaled: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """[rows, vocab] with only the fewest most probable tokens that reach top_p [rows, 1] together (and equals of the
    last of them)."""
    probabilities = scaled.softmax(dim=1)
    smallest = _smallest_kept(probabilities.sort(dim=1, descending=True).values, top_p)
    return scaled.masked_fill(probabilities < smallest.nan_to_num(0.0), -math.inf)


def _smallest_kept(falling: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The probability in [rows, candidates] at which the sum reaches top_p: [rows, 1], NaN where it does not."""
    mass = falling.cumsum(dim=1, dtype=torch.float64)
    reached = (mass < top_p).sum(dim=1, keepdim=True)
    found = falling.gather(1, reached.clamp(max=falling.shape[1] - 1))
    return found.masked_fill(reached == falling.shape[1], math.nan)
