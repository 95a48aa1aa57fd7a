"""Where settings come from besides flags: TRILLM_* variables and a TOML file. Used by app/cli.py and the commands."""

from __future__ import annotations

import itertools
import logging
import os
import tomllib
from collections.abc import Mapping, Sequence
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

MOST_BYTES = 1 << 20
"""Of a file of settings. Its name may be a device's, which has no end."""


@attrs.frozen
class SettingsFile:
    """The file that settings come from."""

    path: str
    named_by: str
    """The flag or variable that names it."""


def settings_file(words: Sequence[str], environment: Mapping[str, str]) -> SettingsFile | None:
    """As a command line's --config names it, or else TRILLM_CONFIG."""
    flags = itertools.takewhile(lambda word: word != "--", words)
    for word in flags:
        if word.startswith("--config="):
            return SettingsFile(word.removeprefix("--config="), "--config")
        if word == "--config" and (following := next(flags, None)) is not None:
            return SettingsFile(following, "--config")
    return SettingsFile(path, "TRILLM_CONFIG") if (path := environment.get("TRILLM_CONFIG")) else None


def config_sources(file: SettingsFile | None) -> list[Config]:
    """Where settings come from besides the flags, the stronger first: TRILLM_* variables, then the file.

    Raises BadRequestError for a file that cannot be read.
    """
    sources: list[Config] = [Env("TRILLM_", command=False)]
    if file is not None:
        sources.append(Dict(read_toml(file), use_commands_as_keys=False, source=file.path))
    return sources


def read_toml(file: SettingsFile) -> dict[str, Any]:
    """Raises BadRequestError."""
    if Path(file.path).suffix in (".yaml", ".yml"):
        raise BadRequestError(
            f"{file.path} ({file.named_by}) is YAML, and trillm reads TOML: "
            "vLLM's `max-model-len: 8192` is `max-model-len = 8192` there, and texts stand in quotes"
        )
    try:
        with open(file.path, "rb") as opened:
            data = opened.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise BadRequestError(f"{file.path} ({file.named_by}) has more than {MOST_BYTES} bytes")
        values = tomllib.loads(data.decode("utf-8-sig"))  # which Windows' editors write
    except FileNotFoundError as error:
        raise BadRequestError(f"{file.path} ({file.named_by}): there is no such file") from error
    except OSError as error:
        raise BadRequestError(f"{file.path} ({file.named_by}) cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # what is no TOML, or not even UTF-8
        raise BadRequestError(f"{file.path} ({file.named_by}) cannot be read: {error}") from error
    except RecursionError as error:
        raise BadRequestError(f"{file.path} ({file.named_by}) cannot be read: it is nested too deeply") from error
    if "config" in values:
        raise BadRequestError(f"{file.path}: one file cannot name another by `config`")
    return values


def warn_of_unknown_variables(settings: type[Settings | ProxySettings] = Settings) -> None:
    """Of TRILLM_* variables that set nothing: most likely misspelt. (The flags and the file are strict.)"""
    known = {"TRILLM_CONFIG", "TRILLM_MODEL", *(f"TRILLM_{field.name.upper()}" for field in attrs.fields(settings))}
    for name in sorted(os.environ):
        if name.startswith("TRILLM_") and name not in known:
            near = get_close_matches(name, known, 1)
            guess = f"; did you mean {near[0]}?" if near else ""
            logging.getLogger("trillm").warning("%s is no setting, and is ignored%s", name, guess)
