"""Checks of single values that name the field, the limit and the value. Used by app/sampling.py and the routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from protocol.errors import BadRequestError

N = TypeVar("N", int, float)

_MAX_SHOWN = 8


def ranged(name: str, value: N | None, low: N, high: N | None, default: N) -> N:
    """The value, or the default for None. Raises BadRequestError outside [low, high]."""
    if value is None:
        return default
    if not low <= value or (high is not None and not value <= high):  # NaN is in no range
        limits = f"at least {low}" if high is None else f"between {low} and {high}"
        raise BadRequestError(f"{name} must be {limits}, not {short(value)}", param=name)
    return value


def short(value: object) -> str:
    """A value as an error message may quote it."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 2**200 else "a number of more than 60 digits"
    return text if len(text) <= 80 else text[:80] + "…"


def few(names: Sequence[str]) -> str:
    """Names as an error message may list them."""
    shown = ", ".join(short(name) for name in names[:_MAX_SHOWN])
    return shown if len(names) <= _MAX_SHOWN else f"{shown}, and {len(names) - _MAX_SHOWN} more"


def check_token_ids(name: str, token_ids: Sequence[int], vocab_size: int) -> None:
    """Raises BadRequestError for the first id outside the vocabulary."""
    if token_ids and (min(token_ids) < 0 or max(token_ids) >= vocab_size):
        wrong = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
        raise BadRequestError(
            f"{name}: token id {short(wrong)} is outside the vocabulary (0 to {vocab_size - 1})", param=name
        )
