"""What an environment variable says for a flag that takes several values. Used by app/settings.py.

Each takes a list of texts in JSON: ["first", "second"]. What is no such list is read as the flag's values come: some
may have blanks in them. An empty variable says nothing.
"""

from __future__ import annotations

import re

import msgspec

from protocol.errors import BadRequestError

_LIST = re.compile(r'\s*\[\s*["\]]')
"""How a list of texts begins. An address as [::1]:8000 does not."""


def whole(kind: object, text: str, *, delimiter: str | None = None) -> list[str]:
    """One value, whatever is in it. Raises BadRequestError for a list that is none.

    What cyclopts asks for: `kind` is the field's type, and nobody here parts values by a `delimiter`."""
    return _listed(text) if _LIST.match(text) else _told([text])


def lines(kind: object, text: str, *, delimiter: str | None = None) -> list[str]:
    """A value a line. Raises BadRequestError."""
    return _listed(text) if _LIST.match(text) else _told(text.splitlines())


def words(kind: object, text: str, *, delimiter: str | None = None) -> list[str]:
    """Values with blanks between them, or one object in JSON. Raises BadRequestError."""
    if _LIST.match(text):
        return _listed(text)
    return _told([text]) if text.lstrip().startswith("{") else text.split()


def _told(values: list[str]) -> list[str]:
    return [value.strip() for value in values if value.strip()]


def _listed(text: str) -> list[str]:
    try:
        return msgspec.json.decode(text, type=list[str])
    except msgspec.DecodeError as error:
        # Without the text, which may hold keys.
        raise BadRequestError(f"an environment variable is no list of texts in JSON: {error}") from error
