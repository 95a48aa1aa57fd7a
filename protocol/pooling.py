"""What becomes of a prompt that is not gone on with: one vector, made of the model's last hidden states."""

from __future__ import annotations

import enum

import msgspec


class Pooling(enum.StrEnum):
    """Which hidden states the vector is made of. All are those after the final norm."""

    LAST = "LAST"
    """The last token's."""
    MEAN = "MEAN"
    """The mean over all tokens."""
    CLS = "CLS"
    """The first token's."""


class PoolingParams(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Checked by the app."""

    pooling: Pooling
    normalize: bool = True
    """To length 1 (L2), after `dimensions` have been cut."""
    dimensions: int | None = None
    """Only the first so many numbers, 1 up to the hidden size. None: all of them."""
