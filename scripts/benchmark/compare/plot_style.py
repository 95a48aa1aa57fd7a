"""How the plots look: one colour, marker and place for each server in all of them, on an opaque background that can be
read on light and dark pages.

The colours are apart for people who see no red or no green, the markers for prints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

INK = "#1f2933"
MUTED = "#616e7c"
GRID = "#e4e7eb"
PAPER = "#ffffff"
BAND_OPACITY = 0.16
OTHER_COLOURS = ("#b8487f", "#6b5b95", "#5f6b73")
OTHER_MARKERS = ("D", "v", "P")

SETTINGS: dict[str, Any] = {
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 9.0,
    "axes.labelsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "font.family": "DejaVu Sans",
    "text.color": INK,
    "text.parse_math": False,  # names are whatever they are
    "svg.fonttype": "path",  # looks the same wherever it is shown
    "svg.hashsalt": "trillm",  # the same figures give the same bytes
}


@attrs.frozen
class Look:
    """Of one server."""

    colour: str
    marker: str


KNOWN = {
    "trillm": Look("#0b62c4", "o"),
    "llama.cpp": Look("#d9660a", "s"),
    "vLLM": Look("#12876b", "^"),
}


def looks(names: Sequence[str]) -> dict[str, Look]:
    """The same for a server whatever else is in a plot, as far as it is known."""
    others = (Look(*pair) for pair in zip(OTHER_COLOURS, OTHER_MARKERS, strict=True))
    return {name: KNOWN.get(name) or next(others, Look(MUTED, "x")) for name in names}
