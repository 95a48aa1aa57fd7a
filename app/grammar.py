"""response_format, structured_outputs and forced tool calls to a Grammar that the engine can rely on.

What can be bounded by looking is bounded here; then the grammar is built once in a process of its own (actors/grammar):
one that is wrong, too big or too slow to build is this one request's 400 and nobody else's concern.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from app.body import nests_within
from app.checks import short
from app.engine import EngineClient
from app.limits import Limits
from app.schemas.sampling import ResponseFormat, SamplingFields, StructuredOutputs
from app.tracing.request_trace import traced_phase
from protocol.errors import BadRequestError, GrammarError, NotImplementedHereError
from protocol.sampling import Grammar, GrammarKind, GrammarSource, Thoughts

_ANY_OBJECT = {"type": "object"}
_MAX_PATTERN_DEPTH = 64
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_GBNF_RULE = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)
_GBNF_HINT = (
    "the grammar looks like GBNF (root ::= …), and is taken in llguidance's Lark dialect, whose first rule is "
    "written start: …; "
)
_NO_PARENTHESES = re.compile(r"[^()]+")


class RequestGrammars:
    """From a request's fields to a checked grammar."""

    def __init__(self, engine: EngineClient, limits: Limits) -> None:
        self._engine = engine
        self._limits = limits

    async def grammar_of(self, fields: SamplingFields, after: Thoughts | None = None) -> Grammar | None:
        """The grammar that a request's fields ask for, None if none; it holds `after` the model's thoughts. Raises
        BadRequestError."""
        outputs, form = fields.structured_outputs, fields.response_format
        if form is not None and form.type == "text":
            form = None
        if outputs is not None and form is not None:
            raise BadRequestError(
                "structured_outputs and response_format exclude each other", param="structured_outputs"
            )
        if outputs is not None:
            return await self._structured(outputs, after)
        return None if form is None else await self._formatted(form, after)

    async def json_schema(self, schema: dict[str, Any] | bool, param: str, after: Thoughts | None = None) -> Grammar:
        """JSON that obeys the schema. Raises BadRequestError."""
        text = msgspec.json.encode(schema)
        self._check_size(len(text), param)
        if not nests_within(text, self._limits.max_json_depth):
            raise BadRequestError(
                f"{param}: the schema is nested more than {self._limits.max_json_depth} levels deep", param=param
            )
        for pattern in _patterns(schema):
            self._check_pattern(pattern, param)
        return await self._checked(GrammarKind.JSON_SCHEMA, text.decode(), param, after)

    async def _formatted(self, form: ResponseFormat, after: Thoughts | None) -> Grammar:
        if form.type == "json_object":
            return await self.json_schema(_ANY_OBJECT, "response_format", after)
        if form.type == "structural_tag":
            raise NotImplementedHereError(
                "response_format.type structural_tag is not supported; use json_schema", param="response_format"
            )
        if form.type != "json_schema":
            raise BadRequestError(
                f"response_format.type must be text, json_object or json_schema, not {short(form.type)}",
                param="response_format",
            )
        if form.json_schema is None or form.json_schema.schema is None:
            raise BadRequestError("response_format.json_schema.schema is missing", param="response_format")
        return await self.json_schema(form.json_schema.schema, "response_format", after)

    async def _structured(self, outputs: StructuredOutputs, after: Thoughts | None) -> Grammar:
        param = "structured_outputs"
        if outputs.structural_tag is not None:
            raise NotImplementedHereError(
                "structured_outputs.structural_tag is not supported; use json, regex or grammar", param=param
            )
        given = [
            name for name in outputs.__struct_fields__ if msgspec.structs.asdict(outputs)[name] not in (None, False)
        ]
        if len(given) != 1 and not (outputs.json is False and not given):
            got = ", ".join(given) or "none of them (any other key is unknown here, and ignored)"
            raise BadRequestError(
                f"structured_outputs needs exactly one of json, regex, choice, grammar, json_object; got {got}",
                param=param,
            )
        if outputs.regex is not None:
            self._check_pattern(outputs.regex, param)
            return await self._checked(GrammarKind.REGEX, outputs.regex, param, after)
        if outputs.choice is not None:
            return await self._choice(outputs.choice, param, after)
        if outputs.grammar is not None:
            self._check_size(len(outputs.grammar.encode()), param)
            return await self._checked(GrammarKind.LARK, outputs.grammar, param, after)
        return await self.json_schema(_ANY_OBJECT if outputs.json_object else _schema(outputs.json), param, after)

    async def _choice(self, choices: list[str], param: str, after: Thoughts | None) -> Grammar:
        if not choices or not all(choices):
            raise BadRequestError("structured_outputs.choice needs strings that are not empty", param=param)
        if len(choices) > self._limits.max_choice_strings:
            raise BadRequestError(
                f"structured_outputs.choice has {len(choices)} strings; "
                f"at most {self._limits.max_choice_strings} are taken",
                param=param,
            )
        self._check_size(sum(map(len, choices)), param)
        lark = "start: " + " | ".join(json.dumps(choice) for choice in dict.fromkeys(choices))
        return await self._checked(GrammarKind.LARK, lark, param, after)

    async def _checked(self, kind: GrammarKind, text: str, param: str, after: Thoughts | None) -> Grammar:
        try:
            with traced_phase("grammar"):
                return await self._engine.check_grammar(GrammarSource(kind, text, after))
        except GrammarError as error:
            hint = _GBNF_HINT if kind is GrammarKind.LARK and _GBNF_RULE.search(text) else ""
            raise GrammarError(f"{param}: {hint}{error.message}", param=param) from error

    def _check_size(self, size: int, param: str) -> None:
        if size > self._limits.max_grammar_bytes:
            raise BadRequestError(
                f"{param}: a grammar of {size} bytes; at most {self._limits.max_grammar_bytes} are taken", param=param
            )

    def _check_pattern(self, pattern: str, param: str) -> None:
        if len(pattern) > self._limits.max_pattern_length:
            raise BadRequestError(
                f"{param}: a pattern of {len(pattern)} characters; at most {self._limits.max_pattern_length} are taken",
                param=param,
            )
        parentheses = _NO_PARENTHESES.sub("", _ESCAPED.sub("", pattern))
        depth = deepest = 0
        for parenthesis in parentheses:
            depth += 1 if parenthesis == "(" else -1
            deepest = max(deepest, depth)
        if deepest > _MAX_PATTERN_DEPTH:
            raise BadRequestError(
                f"{param}: a pattern with groups nested more than {_MAX_PATTERN_DEPTH} levels deep", param=param
            )


def _schema(written: str | dict[str, Any] | bool | None) -> dict[str, Any] | bool:
    if not isinstance(written, str):
        return bool(written) if written is None else written
    if nests_within(written.encode(errors="replace"), 100):
        try:
            found = msgspec.json.decode(written)
        except msgspec.DecodeError as error:
            raise BadRequestError(f"structured_outputs.json is no JSON: {error}", param="structured_outputs") from error
        if isinstance(found, dict | bool):
            return found
    raise BadRequestError(
        "structured_outputs.json must be a schema: an object or a boolean", param="structured_outputs"
    )


def _patterns(schema: object) -> list[str]:
    """Every regular expression in a schema, wherever it stands."""
    if isinstance(schema, list):
        return [pattern for item in schema for pattern in _patterns(item)]
    if not isinstance(schema, dict):
        return []
    own = [schema["pattern"]] if isinstance(schema.get("pattern"), str) else []
    properties = schema.get("patternProperties")
    named = [*properties] if isinstance(properties, dict) else []
    return own + named + [pattern for item in schema.values() for pattern in _patterns(item)]
