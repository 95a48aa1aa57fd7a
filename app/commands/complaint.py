"""What is wrong with a command line, in a sentence that says what would be right. Used by app/cli.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Literal, get_args, get_origin

from cyclopts import CoercionError, CycloptsError, MissingArgumentError, UnknownOptionError, UnusedCliTokensError
from cyclopts.exceptions import RepeatArgumentError, UnknownCommandError

from app.checks import short
from app.commands.foreign_flags import foreign_flags, sentence_of
from app.own_command import own_command

_KINDS: dict[object, str] = {int: "whole number", float: "number", bool: "yes or no"}
_SERVING = {"serve", "check"}
"""The commands that are given what other servers are given."""


def complaint(error: CycloptsError, words: Sequence[str], commands: Sequence[str]) -> str:
    """Lines for the operator, each a sentence.

    words: the command line.
    commands: the commands that there are.
    """
    command = words[0] if words and words[0] in commands else None
    help_flag = f"See `{own_command(*([command] if command else []), '--help')}`."
    if command in _SERVING and (foreign := list(foreign_flags(words[1:]))):
        return "\n".join([*(f"{command} has no {one.flag}: {one.sentence}" for one in foreign), help_flag])
    return f"{_sentence(error, command, commands)}\n{help_flag}"


def _sentence(error: CycloptsError, command: str | None, commands: Sequence[str]) -> str:
    match error:
        case UnknownOptionError():
            names = [name for argument in error.argument_collection if argument.parse for name in argument.names]
            return _unknown_flag(error, command, names)
        case UnknownCommandError():
            return _unknown_command((error.unused_tokens or [""])[0], commands)
        case UnusedCliTokensError():
            as_here = f'{own_command("chat")} "..."'
            quotes = f": a question of several words stands in quotes, as {as_here}" if command == "chat" else ""
            return f"{command or 'trillm'} does not take {short((error.unused_tokens or [''])[0])}{quotes}"
        case RepeatArgumentError() if error.token is not None:
            return f"{_written(error)} is given more than once"
        case MissingArgumentError() if error.unused_tokens and error.unused_tokens[0].startswith("-"):
            return f"{error.unused_tokens[0]} needs a value"
        case MissingArgumentError() if error.argument is not None:
            return f"{command} needs a {error.argument.name.lstrip('-').upper()}"
        case CoercionError() if error.token is not None and error.msg is not None:
            return f"{_written(error)}: {error.msg}"
        case CoercionError() if error.token is not None:
            return f"{_written(error)}: {_no_such_value(error.token.value, error.target_type)}"
    error.verbose = False
    return " ".join(str(error).split())


def _written(error: CycloptsError) -> str:
    """The flag, variable or key that a value was given by, and where that is not the command line, where."""
    token = error.token if isinstance(error, CoercionError | RepeatArgumentError) else None
    assert token is not None
    name = token.keyword or (error.argument.name.lstrip("-").upper() if error.argument else "a value")
    return name if token.source in ("", "cli", "env") else f"{token.source}: {name.strip('[]')}"


def _no_such_value(value: str, kind: object) -> str:
    choices = [str(one) for one in literals(kind)]
    if choices:
        return f"{short(value)} is none of {', '.join(choices)}{_perhaps(value, choices)}"
    return f"{short(value)} is no {_KINDS.get(kind, 'value of its kind')}"


def literals(kind: object) -> Iterable[object]:
    """What a Literal, or a union with one, lists."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return [value for part in get_args(kind) if get_origin(part) is Literal for value in get_args(part)]


def _unknown_flag(error: UnknownOptionError, command: str | None, names: list[str]) -> str:
    token = error.token
    if token.source not in ("", "cli"):  # a file: its keys are spelt as fields
        key, *deeper = (token.keyword or token.value).strip("[]").split("][")
        if deeper:
            return f"{token.source}: settings stand at the top, not in a table such as [{short(key)[1:-1]}]"
        if sentence := sentence_of("--" + key):
            return f"{token.source}: there is no setting {short(key)}: {sentence}"
        fields = [name.lstrip("-").replace("-", "_") for name in names]
        return f"{token.source}: there is no setting {short(key)}{_perhaps(key.replace('-', '_'), fields)}"
    flag = (token.keyword or token.value).split("=", 1)[0]
    if flag.startswith("--no-") and (positive := flag.replace("--no-", "--", 1)) in names:
        return f"there is no {flag}: leave {positive} out instead"
    near = _perhaps(flag, [name for name in names if name.startswith("--")])
    return f"{command or 'trillm'} has no flag {short(flag)[1:-1]}{near}"


def _unknown_command(word: str, commands: Sequence[str]) -> str:
    if word.startswith("-"):
        return f"flags follow a command: `{own_command('serve')} {word}`"
    if "/" in word or "." in word:
        return f"there is no command {short(word)}; did you mean `{own_command('serve')} {word}`?"
    return f"there is no command {short(word)}{_perhaps(word, commands)}"


def _perhaps(word: str, candidates: Sequence[str]) -> str:
    near = get_close_matches(word.lower(), candidates, 1, cutoff=0.65)
    return f"; did you mean {near[0]}?" if near else ""
