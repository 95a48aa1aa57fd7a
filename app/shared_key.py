"""A secret that an operator gives to several servers, in a file. Used by app/hosts.py and app/kv_config.py."""

from __future__ import annotations

from pathlib import Path

from protocol.errors import BadRequestError

MIN_KEY_BYTES = 32
MAX_KEY_BYTES = 4096


def read_shared_key(flag: str, path: Path) -> bytes:
    """What all were given, without white space around it. Raises BadRequestError, which names the flag."""
    try:
        with path.open("rb") as file:
            key = file.read(MAX_KEY_BYTES + 1).strip()
    except (OSError, ValueError) as error:  # also a path with a NUL
        told = error.strerror if isinstance(error, OSError) else error
        raise BadRequestError(f"{flag} {path} cannot be read: {told}") from error
    if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        raise BadRequestError(
            f"{flag} {path} has {len(key)} bytes, and must have {MIN_KEY_BYTES} to {MAX_KEY_BYTES} "
            "that nobody can guess: `openssl rand -hex 32` makes some"
        )
    return key
