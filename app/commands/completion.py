"""`trillm completion`: what a shell needs to complete trillm's commands and flags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from app.commands.ending import tell

if TYPE_CHECKING:
    from cyclopts import App

_ZSH_END = """
if [[ $funcstack[1] == _trillm ]]; then
  _trillm "$@"
else
  compdef _trillm trillm
fi
"""
"""zsh loads the file as its function's body when that is first called; who sources it has it registered."""


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(show_default=False)], /) -> int:
    """Write a shell's completion of trillm's commands and flags.

    Load it in the shell's own start-up file, or save it where the shell looks for such files. It is for a command named
    trillm: one that PATH has, or an alias of that name.

        echo 'source <(trillm completion bash)' >> ~/.bashrc
        trillm completion zsh > "${fpath[1]}/_trillm"
        trillm completion fish > ~/.config/fish/completions/trillm.fish

    Parameters
    ----------
    shell
        bash, zsh or fish.
    """
    from app.cli import make_app

    return tell(completion_script(make_app(()), shell).rstrip("\n"))


def completion_script(app: App, shell: Literal["bash", "zsh", "fish"]) -> str:
    """For `trillm` as a command of that name. Where bash has no word of ours it goes on with names of files: MODEL may
    be one."""
    script = app.generate_completion(prog_name="trillm", shell=shell).rstrip("\n") + "\n"
    if shell == "zsh":
        return script.replace("_cyclopts_trillm", "_trillm") + _ZSH_END
    return script.replace("complete -F _trillm trillm\n", "complete -o bashdefault -o default -F _trillm trillm\n")
