"""How the model is shown a tool of an MCP server: under one name that no other server's tool has."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Container

NameOf = Callable[[str, str], str]
"""(server_label, name) to what the model is shown."""

MAX_LENGTH = 64
_DIGEST_LENGTH = 8
_ODD = re.compile(r"[^A-Za-z0-9_-]")


def shown_name(server_label: str, name: str) -> str:
    """`label__name`, of characters and a length that every chat template and model takes. What had to be changed ends
    in a digest of what it was, so that two tools do not fall together."""
    whole = f"{server_label}__{name}"
    plain = _ODD.sub("_", whole)
    if plain == whole and len(whole) <= MAX_LENGTH:
        return whole
    digest = hashlib.sha256(whole.encode(errors="surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
    return f"{plain[: MAX_LENGTH - _DIGEST_LENGTH - 1]}_{digest}"


def numbered(name: str, taken: Container[str]) -> str:
    """The same, or with a number where it is taken: labels may have the two lines in them, too."""
    number = 2
    told = name
    while told in taken:
        end = f"_{number}"
        told = f"{name[: MAX_LENGTH - len(end)]}{end}"
        number += 1
    return told
