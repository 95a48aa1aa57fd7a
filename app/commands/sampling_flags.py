"""How an answer is to be sampled: flags of `trillm chat` and `trillm bench`, and /set of a chat. Pure."""

from __future__ import annotations

import math
from difflib import get_close_matches
from typing import Annotated

import attrs
from cyclopts import Group, Parameter

from protocol.errors import BadRequestError

SAMPLING = Group("Sampling (default: what the server does)", sort_key=2)
Setting = Annotated[float | None, Parameter(group=SAMPLING, show_default=False)]
Count = Annotated[int | None, Parameter(group=SAMPLING, show_default=False)]

FLOATS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
INTEGERS = ("max_tokens", "top_k", "seed")
NAMES = (*FLOATS, *INTEGERS)
UNSET = ("default", "none")


@attrs.frozen(kw_only=True)
class SamplingFlags:
    temperature: Setting = None
    """0 always takes the likeliest token; higher is more varied."""
    top_p: Setting = None
    """Only of the likeliest tokens that have this probability together."""
    top_k: Count = None
    """Only of this many of the likeliest tokens."""
    min_p: Setting = None
    """Only of tokens this likely, beside the likeliest."""
    presence_penalty: Setting = None
    """Against tokens that the answer has already."""
    frequency_penalty: Setting = None
    """Against them for each time that it has them."""
    repetition_penalty: Setting = None
    """Against tokens of prompt and answer; 1 is none."""

    def fields(self) -> dict[str, float | int]:
        """Those that are set, as requests have them. Raises BadRequestError for what JSON cannot say."""
        told = {name: value for name, value in attrs.asdict(self).items() if value is not None}
        for name, value in told.items():
            if not math.isfinite(value):
                raise BadRequestError(f"--{name.replace('_', '-')} must be a number with an end, not {value}")
        return told


@attrs.frozen(kw_only=True)
class ChatSamplingFlags(SamplingFlags):
    max_tokens: Count = None
    """Tokens of an answer, at most."""
    seed: Count = None
    """The same one gives the same answer."""


def read_setting(name: str, text: str) -> tuple[str, float | int | None]:
    """The field and its value, None for what the server does by itself. Raises BadRequestError with what would do."""
    field = name.removeprefix("--").replace("-", "_")
    if field not in NAMES:
        near = get_close_matches(field, NAMES, 1)
        guess = f"did you mean {near[0]}?" if near else f"there are {', '.join(NAMES)}"
        raise BadRequestError(f"nothing is called {name[:60]!r} here: {guess}")
    if text in UNSET:
        return field, None
    try:
        value = int(text[:20]) if field in INTEGERS else float(text[:60])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        kind = "a whole number" if field in INTEGERS else "a number"
        raise BadRequestError(f"{field} is {kind}, or `default`; {text[:60]!r} is neither")
    return field, value
