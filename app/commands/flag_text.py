"""One flag as help tells of it. Used by app/commands/help_page.py; pure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import attrs
from cyclopts import App, Group
from cyclopts.argument import Argument

_METAVARS: dict[object, str] = {int: "N", float: "N", str: "TEXT", Path: "PATH"}


@attrs.frozen
class FlagText:
    names: tuple[str, ...]
    """With their hyphens; the negative ones are folded in: --[no-]http2."""
    metavar: str
    """What its value is; "" for a switch."""
    text: str
    default: str
    """As one would write it; "" where there is nothing to tell."""
    variables: tuple[str, ...]
    """Environment variables beside the one that follows from the name."""
    group: str
    is_argument: bool
    """A word without a name of its own: a positional argument."""
    is_needed: bool
    is_shown: bool

    @property
    def label(self) -> str:
        return " ".join([", ".join(self.names), self.metavar]).strip()

    @property
    def plain_names(self) -> list[str]:
        """As they are given to turn it on."""
        return [name.replace("[no-]", "") for name in self.names]

    @property
    def whole(self) -> str:
        notes = [f"[default: {self.default}]"] if self.default else []
        notes += [f"[also: {', '.join(self.variables)}]"] if self.variables else []
        return " ".join([self.text, *notes]).strip()


def flag_texts(app: App) -> list[FlagText]:
    """Of one command, in the order of their groups."""
    found = [
        argument
        for argument in app.assemble_argument_collection(parse_docstring=True)
        if argument.parse and argument.names and not argument.children
    ]
    return [_text(argument) for argument in sorted(found, key=_group_order)]


def _group_order(argument: Argument) -> Any:  # noqa: ANN401  whatever the group was given
    key = _group(argument).sort_key
    return key if isinstance(key, int) else -1


def _group(argument: Argument) -> Group:
    groups = argument.parameter.group
    assert isinstance(groups, tuple), groups  # cyclopts makes it one
    group = groups[0]
    assert isinstance(group, Group)
    return group


def _text(argument: Argument) -> FlagText:
    is_argument = argument.index is not None
    hint = argument.hint
    return FlagText(
        names=(argument.names[0].lstrip("-").upper(),) if is_argument else tuple(_names(argument)),
        metavar="" if is_argument or hint is bool or _kinds(hint) == [bool] else _metavar(hint),
        text=" ".join((argument.parameter.help or "").split()),
        default=_default(argument.field_info.default) if argument.parameter.show_default is not False else "",
        variables=tuple(argument.parameter.env_var or ()),
        group=_group(argument).name,
        is_argument=is_argument,
        is_needed=bool(argument.required),
        is_shown=argument.show,
    )


def _names(argument: Argument) -> Iterator[str]:
    negatives = set(argument.negatives)
    for name in argument.names:
        if name not in negatives:
            has_both = f"--no-{name[2:]}" in negatives and name.startswith("--")
            yield f"--[no-]{name[2:]}" if has_both else name


def _kinds(hint: Any) -> list[Any]:  # noqa: ANN401  an annotation
    is_union = get_origin(hint) in (Union, UnionType)
    return [kind for kind in (get_args(hint) if is_union else [hint]) if kind not in (None, NoneType)]


def _metavar(hint: Any) -> str:  # noqa: ANN401  an annotation
    kind = _kinds(hint)[0]
    if get_origin(kind) is Literal:
        return "{" + ",".join(str(value) for value in get_args(kind)) + "}"
    if get_origin(kind) in (tuple, list):
        return f"{_metavar(get_args(kind)[0])}..."
    return _METAVARS.get(kind, "TEXT")


def _default(value: object) -> str:
    match value:
        case True:
            return "yes"
        case bool() | "" | ():
            return ""
        case tuple():
            return " ".join(str(one) for one in value)
        case int() | float():
            return str(value).removesuffix(".0")
        case str() | Path():
            return str(value)
    return ""
