"""Where settings come from besides flags: TRILLM_* variables and a TOML file. Used by app/cli.py and the commands."""

from __future__ import annotations

import logging
import os
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from cyclopts.config import Dict, Env

from app.settings import Settings
from protocol.errors import BadRequestError

if TYPE_CHECKING:
    from app.proxy.settings import ProxySettings

Config = Env | Dict


def config_sources() -> list[Config]:
    """Where settings come from besides the flags, the stronger first: TRILLM_* variables, then TRILLM_CONFIG's file.

    Raises BadRequestError for a file that cannot be read.
    """
    sources: list[Config] = [Env("TRILLM_", command=False)]
    if path := os.environ.get("TRILLM_CONFIG"):
        sources.append(Dict(read_toml(path), use_commands_as_keys=False, source=path))
    return sources


def read_toml(path: str) -> dict[str, Any]:
    """Raises BadRequestError."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # also what is no TOML, or not even UTF-8
        raise BadRequestError(f"{path} (TRILLM_CONFIG) cannot be read: {error}") from error


def warn_of_unknown_variables(settings: type[Settings | ProxySettings] = Settings) -> None:
    """Of TRILLM_* variables that set nothing: most likely misspelt. (The flags and the file are strict.)"""
    known = {"TRILLM_CONFIG", "TRILLM_MODEL", *(f"TRILLM_{field.name.upper()}" for field in attrs.fields(settings))}
    for name in sorted(os.environ):
        if name.startswith("TRILLM_") and name not in known:
            near = get_close_matches(name, known, 1)
            guess = f"; did you mean {near[0]}?" if near else ""
            logging.getLogger("trillm").warning("%s is no setting, and is ignored%s", name, guess)
