"""How the model is shown a tool of an MCP server: under one name that no other server's tool has."""

from __future__ import annotations

import hashlib
import re

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
