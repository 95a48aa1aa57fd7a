"""How this trillm is called by who reads a hint: it may lie in an environment that no PATH names. Used by whatever says
what to do next."""

from __future__ import annotations

import os
import shlex
import shutil
import sysconfig
from pathlib import Path

NAME = "trillm"


def own_command(*words: str) -> str:
    """For copying into a shell: the command, and these words behind it."""
    return shlex.join([own_name(Path(sysconfig.get_path("scripts")), os.environ.get("PATH", "")), *words])


def own_name(scripts: Path, path: str) -> str:
    """`trillm`, if the shell finds that of `scripts` by it; else where it lies, from the directory that we are in if it
    is below. `path`: where a shell looks, as PATH has it."""
    script = scripts.absolute() / NAME
    found = shutil.which(NAME, path=path)
    if not script.is_file() or (found is not None and Path(found).resolve() == script.resolve()):
        return NAME
    try:
        here = Path.cwd()
    except OSError:  # it has been removed
        return str(script)
    for one in (script, script.parent.resolve() / NAME):
        if one.is_relative_to(here):
            below = str(one.relative_to(here))
            return below if "/" in below else f"./{below}"
    return str(script)
