"""The seed of a request and of each of its choices. Used by app/prompts.py."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from app.checks import short
from protocol.errors import BadRequestError

_INT64 = 2**63
_GOLDEN = 0x9E3779B97F4A7C15


def seeds(first: int | None = None) -> Callable[[], int]:
    """Gives non-negative int64s: random ones, or, from a first one on, the same each time."""
    source = random.SystemRandom() if first is None else random.Random(first)
    return partial(source.getrandbits, 63)


def checked_seed(seed: int | None) -> int | None:
    if seed is not None and not -_INT64 <= seed < _INT64:
        raise BadRequestError(f"seed must fit in 64 bits (-2**63 to 2**63-1), not {short(seed)}", param="seed")
    return seed


def choice_seed(seed: int, choice: int) -> int:
    """Seed of one of n choices: the request's own for the first, well apart for the others, the same each time."""
    if choice == 0:
        return seed
    mixed = (seed + choice * _GOLDEN) % 2**64
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
    return (mixed ^ (mixed >> 31)) - _INT64
