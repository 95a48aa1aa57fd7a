"""Keeps a client's text from becoming control tokens on its way through a chat template.

Where client text spells a control token, a private-use character that occurs nowhere in it stands for the spelling
while the template runs. So the template can still test, trim and join the text, and afterwards the tokeniser can tell
the template's own control tokens from the client's. Used by app/render.py.
"""

from __future__ import annotations

from typing import Any

from attrs import frozen

from app.tokenizer import Tokenizer
from protocol.errors import BadRequestError

_PRIVATE_USE = range(0xF0000, 0xFFFFD)


@frozen
class HiddenTokens:
    variables: dict[str, Any]
    """The template's variables, with spellings replaced."""
    spellings: dict[str, str]
    """Private-use character to the spelling it stands for. Empty in the usual case."""


def hide_control_tokens(variables: dict[str, Any], tokenizer: Tokenizer) -> HiddenTokens:
    """Raises BadRequestError if there are not enough characters to stand for what the text spells."""
    whole = "\0".join(_texts(variables))  # one search, not one for each of many short texts
    found = tokenizer.find_special(whole)
    if not found:
        return HiddenTokens(variables, {})
    used = frozenset[str]() if whole.isascii() else frozenset(whole)
    free = (char for char in map(chr, _PRIVATE_USE) if char not in used)
    standing = dict(zip(found, free, strict=False))
    if len(standing) < len(found):
        raise BadRequestError("The messages spell too many control tokens", param="messages")
    order = sorted(standing, key=len, reverse=True)  # a spelling may be part of a longer one
    hidden = {name: _replaced(value, standing, order) for name, value in variables.items()}
    return HiddenTokens(hidden, {char: spelling for spelling, char in standing.items()})


def _texts(value: object) -> list[str]:
    """Every string in a tree of dicts and lists, keys included."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for key, item in value.items() for text in (*_texts(key), *_texts(item))]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return []


def _replaced(value: object, standing: dict[str, str], order: list[str]) -> object:
    if isinstance(value, str):
        for spelling in order:
            value = value.replace(spelling, standing[spelling])
        return value
    if isinstance(value, dict):
        return {_replaced(k, standing, order): _replaced(v, standing, order) for k, v in value.items()}
    if isinstance(value, list):
        return [_replaced(item, standing, order) for item in value]
    return value
