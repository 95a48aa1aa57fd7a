"""Tools as openai-harmony describes them: functions of the client's, and tools of MCP servers, from their JSON schemas.

Used by app/harmony/messages.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from openai_harmony import ToolDescription, ToolNamespaceConfig

from app.harmony.hidden_texts import HiddenTexts
from app.harmony.recipients import FUNCTIONS, PYTHON, has_namespace
from app.schemas.chat import FunctionDefinition, Tool
from app.tool_namespace import ToolNamespace
from protocol.errors import BadRequestError

MAX_BYTES = 2**20
"""Of all tools in JSON: while they are rendered, nothing else runs."""
_BROWSER = "browser"
_OF_THE_SYSTEM = (_BROWSER, PYTHON, "container")
"""Namespaces that gpt-oss has been trained to find in the system message."""


class ToolDescriptions:
    """Of one conversation: what is told of its tools where. Raises BadRequestError for too much of it."""

    def __init__(self, tools: Sequence[Tool], namespaces: Sequence[ToolNamespace], hidden: HiddenTexts) -> None:
        size = len(msgspec.json.encode((tools, [namespace.description for namespace in namespaces])))
        if size > MAX_BYTES:
            raise BadRequestError(f"tools has {size} bytes; at most {MAX_BYTES} are taken", param="tools")
        self._hidden = hidden
        self.system: list[ToolNamespaceConfig] = []
        self.developer: list[ToolNamespaceConfig] = []
        functions = {tool.function.name: tool.function for tool in tools}
        for namespace in filter(has_namespace, namespaces):
            shown = {name: functions.pop(name) for name in namespace.tools if name in functions}
            if shown:
                where = self.system if namespace.label in _OF_THE_SYSTEM else self.developer
                where.append(self._namespace(namespace, shown))
        if functions:
            told = [self._tool(name, function) for name, function in functions.items()]
            self.developer.insert(0, ToolNamespaceConfig(name=FUNCTIONS, description=None, tools=told))

    def _namespace(self, namespace: ToolNamespace, functions: Mapping[str, FunctionDefinition]) -> ToolNamespaceConfig:
        description = None if namespace.description is None else self._hidden.runs(namespace.description)
        if namespace.label == PYTHON and namespace.text_parameter is not None:
            # No function: the model knows that it sends nothing but code there.
            [function] = functions.values()
            told = description or self._hidden.runs(function.description or "")
            return ToolNamespaceConfig(
                name=PYTHON, description=told or ToolNamespaceConfig.python().description, tools=[]
            )
        if namespace.label == _BROWSER and description is None:
            description = ToolNamespaceConfig.browser().description
        tools = [self._tool(namespace.tools[name], function) for name, function in functions.items()]
        return ToolNamespaceConfig(name=namespace.label, description=description, tools=tools)

    def _tool(self, name: str, function: FunctionDefinition) -> ToolDescription:
        return ToolDescription.new(
            self._hidden.runs(name),
            self._hidden.runs(function.description or ""),
            parameters=cast("dict[str, Any] | None", self._hidden.tree(function.parameters)),
        )
