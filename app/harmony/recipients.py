"""To whom a message of a model is a call: functions by their names, tools of MCP servers in their namespaces.

Pure. Read by app/harmony/message_parts.py, written by app/harmony/messages.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from attrs import frozen

from app.tool_namespace import ToolNamespace

FUNCTIONS = "functions"
PYTHON = "python"
"""The namespace that a model calls as such, with nothing but code."""
_ROLES = ("assistant", "user", "system", "developer", "tool")


@frozen
class Called:
    name: str
    """By which the call is told."""
    text_parameter: str | None = None
    """Of a call whose message is this argument, and no object."""


def has_namespace(namespace: ToolNamespace) -> bool:
    """Whether its label can be one: it is neither that of all functions nor somebody's who speaks."""
    return namespace.label != FUNCTIONS and namespace.label not in _ROLES


class Recipients:
    """Of one request."""

    def __init__(self, names: Collection[str], namespaces: Sequence[ToolNamespace]) -> None:
        """`names`: what may be called now. `namespaces`: also of what was called once and may not be called now."""
        self._recipients: dict[str, str] = {}
        self._called = {f"{FUNCTIONS}.{name}": Called(name) for name in names}
        for namespace in filter(has_namespace, namespaces):
            for shown, own in namespace.tools.items():
                self._recipients[shown] = f"{namespace.label}.{own}"
                if shown not in names:
                    continue
                self._called[f"{namespace.label}.{own}"] = Called(shown)
                self._called.setdefault(f"{FUNCTIONS}.{namespace.label}.{own}", Called(shown))  # as models err
                if namespace.text_parameter is not None:
                    self._called[namespace.label] = Called(shown, namespace.text_parameter)
        self._text_parameters = {
            shown: namespace.text_parameter
            for namespace in namespaces
            if namespace.label == PYTHON
            for shown in namespace.tools
        }

    def find(self, recipient: str | None) -> Called | None:
        """None: nobody who may be called."""
        return None if recipient is None else self._called.get(recipient)

    def text_parameter(self, name: str) -> str | None:
        """If calls by this name are written as text: which argument that is."""
        return self._text_parameters.get(name)

    def recipient(self, name: str) -> str:
        """Of a call by this name, and the author of its result."""
        if self.text_parameter(name) is not None:
            return PYTHON
        return self._recipients.get(name, f"{FUNCTIONS}.{name}")
