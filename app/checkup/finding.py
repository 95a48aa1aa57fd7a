"""One line of `trillm check`. Used by everything in app/checkup; pure."""

from __future__ import annotations

import enum

import attrs


class Mark(enum.StrEnum):
    OK = "ok"
    WARN = "warn"
    """It works, and could be better."""
    FAIL = "fail"
    """The server cannot start, or cannot start with this model."""


@attrs.frozen
class Finding:
    name: str
    """What was looked at, in a word or two."""
    mark: Mark
    text: str
    remedy: str = ""
    """What to do, where there is something to do."""


def size(num_bytes: float) -> str:
    """As operators write it: in GiB, or MiB below one."""
    if num_bytes > 0.995 * 2**30:
        gibibytes = num_bytes / 2**30
        return f"{gibibytes:.0f} GiB" if gibibytes >= 100 else f"{gibibytes:.1f} GiB"
    return f"{num_bytes / 2**20:.0f} MiB"


def count(number: float) -> str:
    """Parameters, as models are named: 135M, 7.6B."""
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}"
    return f"{number:.0f}"
