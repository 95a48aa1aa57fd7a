"""Whole numbers as people write them, as vLLM reads them: 8192, 8k (8000), 8K (8192). Used by app/settings.py."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cyclopts import CoercionError, Token

_NUMBER = re.compile(r"(?P<number>-?[0-9]{1,18}|(?P<fraction>[0-9]{1,18}\.[0-9]{1,18}))(?P<unit>[kKmMgGtT]?)")
_UNITS: dict[str, int] = {"": 1} | {unit: 1000**power for power, unit in enumerate("kmgt", 1)}
_BINARY_UNITS: dict[str, int] = {unit: 1024**power for power, unit in enumerate("KMGT", 1)}


def read_number(text: str) -> int:
    """A small letter stands for a power of 1000, a capital one for a power of 1024, and only the former may follow a
    fraction. Raises ValueError."""
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text} is no whole number: write it as 8192, 8k (8000), 8K (8192) or 2.5g")
    unit = found["unit"]
    if found["fraction"] is None:
        return int(found["number"]) * (_UNITS | _BINARY_UNITS)[unit]
    if unit not in _UNITS or not unit:
        raise ValueError(f"{text} is no whole number: a fraction goes with k, m, g or t, which are powers of 1000")
    return round(float(found["number"]) * _UNITS[unit])


def human_number(kind: object, tokens: Sequence[Token]) -> int:
    """A converter of cyclopts."""
    try:
        return read_number(tokens[0].value)
    except ValueError as error:
        raise CoercionError(msg=str(error), token=tokens[0]) from error


def human_number_or_auto(kind: object, tokens: Sequence[Token]) -> int | None:
    """The same, where "auto" or -1 is what stands without the flag."""
    return None if tokens[0].value.strip().lower() in {"auto", "-1"} else human_number(kind, tokens)
