"""`trillm completion`: what a shell needs to complete trillm's commands and flags."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

if TYPE_CHECKING:
    from cyclopts import App


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(show_default=False)], /) -> int:
    """Write a shell's completion of trillm's commands and flags.

    Load it in the shell's own start-up file, or save it where the shell looks for such files:

        echo 'source <(trillm completion bash)' >> ~/.bashrc
        trillm completion zsh > "${fpath[1]}/_trillm"
        trillm completion fish > ~/.config/fish/completions/trillm.fish

    Parameters
    ----------
    shell
        bash, zsh or fish.
    """
    from app.cli import make_app

    sys.stdout.write(completion_script(make_app(), shell))
    return 0


def completion_script(app: App, shell: Literal["bash", "zsh", "fish"]) -> str:
    """For `trillm` as a command of that name."""
    return app.generate_completion(prog_name="trillm", shell=shell).rstrip("\n") + "\n"
