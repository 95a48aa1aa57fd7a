"""Whether a command line asks for help, and for how much of it. Used by app/cli.py; pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import attrs


@attrs.frozen
class HelpWanted:
    command: str | None
    """None: of trillm itself."""
    topic: str
    """"" is the short page; "all", "page" and "listgroup" as vLLM has them; else a group's or a flag's name."""


def help_wanted(words: Sequence[str], commands: Collection[str]) -> HelpWanted | None:
    """None: it does not ask for help. `trillm` alone does, and so does `trillm help COMMAND`."""
    if not words:
        return HelpWanted(None, "")
    if words[0] == "help":
        return HelpWanted(next((word for word in words[1:] if word in commands), None), "")
    command = words[0] if words[0] in commands else None
    for word in words:
        if word == "--":
            return None
        if word in ("--help", "-h"):
            return HelpWanted(command, "")
        if word == "--help-all":
            return HelpWanted(command, "all")
        if word.startswith("--help="):
            return HelpWanted(command, word.removeprefix("--help=").strip())
    return None
