"""Temperature, and what top_k, top_p and min_p leave of a distribution to draw from. Used by gpu/sampler."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from gpu.sampling_columns import Part, SamplingColumns

FIRST_CANDIDATES = 512
"""How many of the most probable tokens top_p looks at before it sorts the whole vocabulary, where it can tell."""

Reach = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From probabilities [rows, vocab] and top_p [rows, 1] to [rows, 1]: the probability at which their sum, from the
largest on, reaches top_p; NaN where it does not."""


def truncated(logits: torch.Tensor, best: torch.Tensor, columns: SamplingColumns, on_device: bool) -> torch.Tensor:
    """[drawn rows, vocab] of temperature 1, and -inf for what top_k, top_p and min_p leave out; `best` [drawn rows] is
    each row's maximum. With `on_device` nothing is decided on the host."""
    assert columns.drawn is not None, "no row draws"
    # Measured from the maximum, so that no temperature makes anything but 0 of the best and less of the others.
    scaled = (logits - best.unsqueeze(1)) / columns.drawn.columns[0]
    if columns.top_k is not None:
        columns.top_k.change(scaled, partial(_keep_top_k, most=columns.most_top_k))
    if columns.short_top_p is not None:
        # All that top_k left and that differs is among the candidates: what they do not reach, nothing reaches.
        columns.short_top_p.change(scaled, partial(_keep_top_p, reached=_reached_by_few))
    if columns.long_top_p is not None:
        columns.long_top_p.change(scaled, partial(_keep_top_p, reached=_reached_by_all if on_device else _reached))
    if columns.min_p is not None:
        columns.min_p.change(scaled, _keep_min_p)
    return scaled


def _keep_top_k(scaled: torch.Tensor, part: Part, most: int) -> None:
    """Everything below the k-th largest of [rows, vocab] to -inf (equals of the k-th stay); no k is above `most`."""
    (top_k,) = part.columns
    smallest = scaled.topk(most, dim=1).values.gather(1, top_k - 1)
    scaled.masked_fill_(scaled < smallest, -math.inf)


def _keep_min_p(scaled: torch.Tensor, part: Part) -> None:
    (floor,) = part.columns
    scaled.masked_fill_(scaled < floor, -math.inf)


def _keep_top_p(scaled: torch.Tensor, part: Part, reached: Reach) -> None:
    """Only the fewest most probable tokens of [rows, vocab] that reach top_p together (and equals of the last of them);
    `reached` finds the last one's probability."""
    (top_p,) = part.columns
    probabilities = scaled.softmax(dim=1)
    scaled.masked_fill_(probabilities < reached(probabilities, top_p).nan_to_num_(0.0), -math.inf)


def _reached_by_few(probabilities: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    return _smallest_kept(probabilities.topk(min(FIRST_CANDIDATES, probabilities.shape[1]), dim=1).values, top_p)


def _reached_by_all(probabilities: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    return _smallest_kept(probabilities.sort(dim=1, descending=True).values, top_p)


def _reached(probabilities: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Sorts only those rows whose first candidates do not reach it."""
    smallest = _reached_by_few(probabilities, top_p)
    if spread := smallest.isnan().squeeze(1).nonzero().squeeze(1).tolist():
        smallest[spread] = _reached_by_all(probabilities[spread], top_p[spread])
    return smallest


def _smallest_kept(falling: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The probability in [rows, candidates] at which the sum reaches top_p: [rows, 1], NaN where it does not."""
    mass = falling.cumsum(dim=1, dtype=torch.float64)
    reached = (mass < top_p).sum(dim=1, keepdim=True)
    found = falling.gather(1, reached.clamp(max=falling.shape[1] - 1))
    return found.masked_fill(reached == falling.shape[1], math.nan)
