"""response_format, structured_outputs and forced tool calls to a Grammar that the engine can rely on.

The text is made by llguidance's own constructors and built once here, with limits, in a worker thread: a grammar that
is wrong, too big or too slow to build is this one request's 400 and never the engine's concern.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec
import trio
from llguidance import LLMatcher, LLTokenizer

from app.body import nests_within
from app.checks import short
from app.limits import Limits
from app.schemas.sampling import ResponseFormat, SamplingFields, StructuredOutputs
from protocol.errors import BadRequestError
from protocol.sampling import Grammar

_JSON_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""At most one blank after a comma or a colon: free whitespace lets a model fill its whole answer with it."""
_BYTES = LLTokenizer("byte")
"""Any vocabulary shows whether a grammar can begin; this one is made in a millisecond."""
_ANY_OBJECT = {"type": "object"}
_MAX_PATTERN_DEPTH = 64
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_NO_PARENTHESES = re.compile(r"[^()]+")


class GrammarCompiler:
    """Checks grammars with bounded parallelism and time. One per process."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._limiter = trio.CapacityLimiter(2)

    async def grammar_of(self, fields: SamplingFields) -> Grammar | None:
        """The grammar that a request's fields ask for, None if none. Raises BadRequestError."""
        outputs, form = fields.structured_outputs, fields.response_format
        if form is not None and form.type == "text":
            form = None
        if outputs is not None and form is not None:
            raise BadRequestError(
                "structured_outputs and response_format exclude each other", param="structured_outputs"
            )
        if outputs is not None:
            return await self._structured(outputs)
        return None if form is None else await self._formatted(form)

    async def json_schema(self, schema: dict[str, Any] | bool, param: str) -> Grammar:
        """JSON that obeys the schema. Raises BadRequestError."""
        text = msgspec.json.encode(schema)
        self._check_size(len(text), param)
        if not nests_within(text, self._limits.max_json_depth):
            raise BadRequestError(
                f"{param}: the schema is nested more than {self._limits.max_json_depth} levels deep", param=param
            )
        for pattern in _patterns(schema):
            self._check_pattern(pattern, param)
        return await self._built(
            lambda: str(LLMatcher.grammar_from_json_schema(text.decode(), overrides=_JSON_OPTIONS)), param
        )

    async def _formatted(self, form: ResponseFormat) -> Grammar:
        if form.type == "json_object":
            return await self.json_schema(_ANY_OBJECT, "response_format")
        if form.type != "json_schema":
            raise BadRequestError(
                f"response_format.type must be text, json_object or json_schema, not {short(form.type)}",
                param="response_format",
            )
        if form.json_schema is None or form.json_schema.schema is None:
            raise BadRequestError("response_format.json_schema.schema is missing", param="response_format")
        return await self.json_schema(form.json_schema.schema, "response_format")

    async def _structured(self, outputs: StructuredOutputs) -> Grammar:
        param = "structured_outputs"
        given = [
            name for name in outputs.__struct_fields__ if msgspec.structs.asdict(outputs)[name] not in (None, False)
        ]
        if len(given) != 1 and not (outputs.json is False and not given):
            raise BadRequestError(
                f"structured_outputs needs exactly one of json, regex, choice, grammar, json_object; got "
                f"{given or 'none'}",
                param=param,
            )
        if outputs.regex is not None:
            self._check_pattern(outputs.regex, param)
            regex = outputs.regex
            return await self._built(lambda: str(LLMatcher.grammar_from_regex(regex)), param)
        if outputs.choice is not None:
            return await self._choice(outputs.choice, param)
        if outputs.grammar is not None:
            lark = outputs.grammar
            self._check_size(len(lark.encode()), param)
            return await self._built(lambda: str(LLMatcher.grammar_from_lark(lark)), param)
        return await self.json_schema(_ANY_OBJECT if outputs.json_object else _schema(outputs.json), param)

    async def _choice(self, choices: list[str], param: str) -> Grammar:
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
        return await self._built(lambda: str(LLMatcher.grammar_from_lark(lark)), param)

    async def _built(self, make: Callable[[], str], param: str) -> Grammar:
        """Abandons, after the time limit, a build that does not end; a thread that goes on holds one of two places."""

        def build() -> tuple[str, str]:
            text = make()
            return text, LLMatcher.validate_grammar(text) or _stuck(text)

        with trio.move_on_after(self._limits.grammar_seconds):
            try:
                text, complaint = await trio.to_thread.run_sync(build, abandon_on_cancel=True, limiter=self._limiter)
            except (ValueError, TypeError, RecursionError) as error:
                raise BadRequestError(f"{param}: {_tidy(str(error))}", param=param) from error
            if complaint:
                raise BadRequestError(f"{param}: {_tidy(complaint)}", param=param)
            return Grammar(text)
        raise BadRequestError(
            f"{param}: the grammar could not be built within {self._limits.grammar_seconds:g} s", param=param
        )

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


def _stuck(text: str) -> str:
    """Why a well-formed grammar allows no first byte ("" if it does): it is empty, or refers to itself without end."""
    if "<" in text:
        return ""  # it may name tokens, which bytes alone have not; the engine tells then
    matcher = LLMatcher(_BYTES, text, log_level=0)
    if not matcher.is_error():
        matcher.compute_bitmask()
    complaint = str(matcher.get_error())
    return "the grammar allows no text at all" if complaint.startswith("NoExtension") else complaint


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


def _tidy(complaint: str) -> str:
    """The first lines of the compiler's words, short enough to tell."""
    text = " ".join(complaint.split())
    return text if len(text) <= 300 else text[:300] + " …"
