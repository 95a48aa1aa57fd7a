"""Logits to tokens: constraints, penalties, then greedy or a draw, each row independent of the others.

Order: grammar bitmask, allowed tokens and logit_bias, bad words, min_tokens; repetition, frequency and presence
penalties; temperature; top_k; top_p; min_p; Gumbel-max with noise that only (seed, position) decides (gpu/noise).
The numbers stay where the logits are: one copy there, one more when the batch's members change, one copy back, and
nothing between waits for the host. Used by gpu/step_sampler. A row that cannot be sampled becomes an error of that row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import numpy as np
import torch

from gpu.fetch import Fetch
from gpu.last_tokens import LastTokens
from gpu.noise import gumbel_noise, noise_keys
from gpu.sampling_columns import Part, SamplingColumns
from gpu.sequence_slot import SequenceSlot
from gpu.staging import Staging
from gpu.truncation import truncated
from protocol.ids import Slot

NOT_FINITE = "the model's logits for this sequence are not finite numbers"
NOTHING_ALLOWED = "grammar, allowed tokens, bad words and min_tokens together leave no token that may come next"
LARGEST = torch.finfo(torch.float32).max
BLOCKED, BROKEN = -1, -2
"""In the place of a token: nothing is allowed, and the logits are no numbers."""
ERRORS = {BLOCKED: NOTHING_ALLOWED, BROKEN: NOT_FINITE}


NO_SLOT = Slot(0)
"""Of rows outside a runner."""


@attrs.frozen(eq=False)
class SamplingRow:
    """One row of logits to choose from. A slot is in a batch once, unless nothing is remembered of its tokens."""

    slot: SequenceSlot
    position: int
    """Of the token that is chosen."""
    grammar_bitmask: bytes | None = None
    slot_index: Slot = NO_SLOT
    """Where the runner keeps the sequence; matters only with gpu.last_tokens."""


@attrs.frozen
class Choice:
    """The token, or why there is none."""

    token_id: int
    error: str | None = None


@attrs.frozen(eq=False)
class PlacedRows:
    """What a step brings to the device for its rows."""

    positions: torch.Tensor
    """[rows] int64."""
    slots: torch.Tensor
    """[rows] int64."""
    forbidden: torch.Tensor
    """[count] int64, counted through [rows, vocab]: what bad words and min_tokens forbid."""
    masked: torch.Tensor
    """[count] int64: the rows with a grammar."""
    bitmasks: torch.Tensor
    """[count of those, words] int32."""


class Chosen:
    """A step's tokens, on the device at first."""

    def __init__(self, token_ids: torch.Tensor, columns: SamplingColumns, slots: torch.Tensor) -> None:
        self.token_ids = token_ids
        """[rows] int64; negative for a row that failed, as in ERRORS."""
        self._columns = columns
        self._slots = slots
        self._fetch = Fetch([token_ids])

    def grow(self, last_tokens: LastTokens | None) -> None:
        """The tokens are now part of their sequences, as far as the device remembers these. (The host's lists are the
        runner's, as soon as it knows.)"""
        for slot in self._columns.slots:
            slot.num_output_tokens += 1
        if last_tokens is not None:
            last_tokens.store(self._slots, self.token_ids)
        if not self._columns.counted and not self._columns.seen:
            return
        succeeded = (self.token_ids >= 0).unsqueeze(1)
        token_ids = self.token_ids.clamp(min=0).unsqueeze(1)
        for part in self._columns.counted:
            assert part.state is not None, "counts are a state"
            part.state.scatter_add_(1, token_ids[part.rows], succeeded[part.rows].to(part.state.dtype))
        for part in self._columns.seen:
            assert part.state is not None, "what was seen is a state"
            ids = token_ids[part.rows]
            part.state.scatter_(1, ids, part.state.gather(1, ids) | succeeded[part.rows])

    def choices(self) -> list[Choice]:
        """Waits until the tokens are here, and for nothing that was queued behind them."""
        (token_ids,) = self._fetch.wait()
        return [Choice(-1, ERRORS[one]) if one < 0 else Choice(one) for one in token_ids.tolist()]


class Sampler:
    """Keeps what does not change from step to step: one per runner."""

    def __init__(self, device: torch.device, together: bool | None = None) -> None:
        """`together`: whether all rows with a feature are changed at once (the default but on a CPU) and nothing is
        decided on the host; it changes no result."""
        self._together = device.type != "cpu" if together is None else together
        self._staging = Staging(device)
        self._columns_staging = Staging(device)
        self._columns: SamplingColumns | None = None

    def choose(self, logits: torch.Tensor, rows: Sequence[SamplingRow]) -> Chosen:
        """Choose a token per row of `logits` [rows, vocab] float32, which is overwritten. `rows` is not empty."""
        columns = self._columns_of(rows, logits)
        placed = _place(rows, logits.shape[1], self._staging)
        broken = ~logits.amax(dim=1).isfinite()
        _constrain(logits, columns, placed)
        _penalise(logits, columns)
        token_ids = _most_probable(logits)
        best = logits.gather(1, token_ids.unsqueeze(1)).squeeze(1)
        blocked = best == -math.inf
        if columns.drawn is not None:
            drawn = columns.drawn.rows
            scaled = truncated(logits[drawn], best[drawn], columns, self._together)
            keys = noise_keys(columns.seeds[drawn], placed.positions[drawn])
            token_ids[drawn] = (scaled + gumbel_noise(keys, logits.shape[1])).argmax(dim=1)
        token_ids = token_ids.masked_fill(blocked, BLOCKED).masked_fill_(broken, BROKEN)
        return Chosen(token_ids, columns, placed.slots)

    def forget(self) -> None:
        """Keep nothing of the last batch: [rows, vocab] on the device, for each of its features."""
        self._columns = None

    def _columns_of(self, rows: Sequence[SamplingRow], logits: torch.Tensor) -> SamplingColumns:
        slots = [row.slot for row in rows]
        if self._columns is None or self._columns.slots != slots:
            self._columns = SamplingColumns(slots, logits.shape[1], self._columns_staging, self._together)
        return self._columns


def _place(rows: Sequence[SamplingRow], vocab_size: int, staging: Staging) -> PlacedRows:
    forbidden: list[int] = []
    masks: list[np.ndarray] = []
    masked: list[int] = []
    for index, row in enumerate(rows):
        slot = row.slot
        if row.grammar_bitmask is not None:
            masked.append(index)
            masks.append(np.frombuffer(row.grammar_bitmask, dtype=np.int32))
        if slot.params.bad_words_token_ids:
            forbidden += [index * vocab_size + token_id for token_id in slot.bad_next_tokens()]
        if slot.num_output_tokens < slot.params.min_tokens:
            forbidden += [index * vocab_size + token_id for token_id in slot.ending]
    longs: list[list[int]] = [[row.position for row in rows], [*(row.slot_index for row in rows)], forbidden, masked]
    words = np.concatenate(masks) if masks else np.empty(0, dtype=np.int32)
    (positions, slots, forbidden_at, masked_at), (bitmasks,) = staging.place(longs, [words])
    return PlacedRows(positions, slots, forbidden_at, masked_at, bitmasks.view(max(1, len(masks)), -1))


def _most_probable(logits: torch.Tensor) -> torch.Tensor:
    """[rows] int64: where each row of [rows, vocab] has its maximum first. On a CPU numpy finds it several times faster
    than torch, which took a thirtieth of a step of many sequences."""
    if logits.device.type == "cpu":
        return torch.from_numpy(logits.numpy().argmax(axis=1))
    return logits.argmax(dim=1)


def _constrain(logits: torch.Tensor, columns: SamplingColumns, placed: PlacedRows) -> None:
    """Forbid and bias tokens of [rows, vocab], in place."""
    if len(placed.masked):
        bits = torch.arange(32, dtype=torch.int32, device=logits.device)
        forbidden = ((placed.bitmasks.unsqueeze(-1) >> bits) & 1).flatten(1)[:, : logits.shape[1]] == 0
        logits[:, forbidden.shape[1] :].index_fill_(0, placed.masked, -math.inf)
        covered = logits[:, : forbidden.shape[1]]
        covered[placed.masked] = covered[placed.masked].masked_fill_(forbidden, -math.inf)
    for part in columns.biased:
        part.change(logits, _add_bias)
    if len(placed.forbidden):
        logits.view(-1).index_fill_(0, placed.forbidden, -math.inf)


def _penalise(logits: torch.Tensor, columns: SamplingColumns) -> None:
    """Make tokens that were there before less likely, [rows, vocab], in place."""
    for part in columns.seen:
        part.change(logits, _penalise_repetition)
    for part in columns.counted:
        part.change(logits, _penalise_counts)


def _add_bias(these: torch.Tensor, part: Part) -> None:
    assert part.state is not None, "a bias is a state"
    these += part.state


def _penalise_repetition(these: torch.Tensor, part: Part) -> None:
    assert part.state is not None, "what was seen is a state"
    (penalty,) = part.columns
    penalised = torch.where(these > 0, these / penalty, these * penalty)
    torch.where(part.state, penalised, these, out=these)
    these.clamp_(max=LARGEST)  # a tiny penalty must not make infinity of a large logit


def _penalise_counts(these: torch.Tensor, part: Part) -> None:
    assert part.state is not None, "counts are a state"
    frequency, presence = part.columns
    these -= frequency * part.state
    these -= presence * (part.state > 0)
