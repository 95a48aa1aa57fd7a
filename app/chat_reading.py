"""How the answer to one chat is read: as a forced call, in the model's dialect, or as the plain text it is.

Used by app/chat.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import attrs
import msgspec
from attrs import frozen

from app.call_reader import CallReader
from app.calls import Calls, callable_tools
from app.choice_reader import TextParser, TextReader, Wanted
from app.dialects import harmony, thinking
from app.dialects.dialect import PromptEnd, prompt_end
from app.dialects.plain import PlainText
from app.engine import Prompt
from app.parts import ChoiceReader
from app.schemas.chat import ChatRequest, ContentPart, Message
from app.services import Services
from app.tokenizer import Tokenizer
from app.tool_namespace import ToolNamespace
from protocol.sampling import Thoughts

if TYPE_CHECKING:
    from app.harmony.harmony import Harmony

_NUM_END_TOKENS = 32
"""Enough for a mark and the blanks after it."""


@frozen
class Reading:
    reader: Callable[[], ChoiceReader] | None = None
    """None: the text is the answer and nothing else."""
    counts_reasoning: bool = False
    needs_control_tokens: bool = False

    def adapted(self, prompts: list[Prompt]) -> list[Prompt]:
        """The prompts, asking for control tokens in the text if some of them are to be read."""
        if not self.needs_control_tokens:
            return prompts
        return [
            attrs.evolve(
                prompt, sampling_params=msgspec.structs.replace(prompt.sampling_params, skip_special_tokens=False)
            )
            for prompt in prompts
        ]


def end_of_prompt(services: Services, body: ChatRequest, token_ids: Sequence[int]) -> PromptEnd:
    """What of the rendered prompt the answer continues."""
    tokenizer = services.tokenizer
    if not services.dialect.reads(has_tools=True):
        return PromptEnd()
    at = max(len(token_ids) - _NUM_END_TOKENS, 0)
    start = tokenizer.token_id(harmony.START) if services.dialect.is_harmony else None
    if start is not None and start in token_ids:
        at = len(token_ids) - 1 - token_ids[::-1].index(start)
    continued = _text(body.messages[-1]) if body.continue_final_message else None
    return prompt_end(tokenizer.decode(list(token_ids[at:])), continued)


def thoughts_before_grammar(services: Services, end: PromptEnd, token_ids: Sequence[int]) -> Thoughts | None:
    """`token_ids`: of the prompt."""
    if services.harmony is not None:
        return services.harmony.thoughts(token_ids)
    return services.dialect.thoughts(end, _reasoning_marks(services.tokenizer))


def read_chat(services: Services, body: ChatRequest, calls: Calls | None, has_grammar: bool, end: PromptEnd) -> Reading:
    """An answer that a grammar makes has no calls but those that it forces."""
    dialect = services.dialect
    tools = callable_tools(body.tools, body.tool_choice)
    schemas = {tool.function.name: tool.function.parameters for tool in tools}
    keeps_control_tokens = body.skip_special_tokens is False
    wanted = _wanted(body)
    marks = None if dialect.is_harmony else _reasoning_marks(services.tokenizer)

    def parser() -> TextParser:
        if calls is not None:
            return dialect.made_by_grammar(CallReader(calls), end, keeps_control_tokens)
        if has_grammar:
            return dialect.made_by_grammar(PlainText(), end, keeps_control_tokens)
        return dialect.parser(schemas, bool(tools), end, keeps_control_tokens)

    def reader() -> ChoiceReader:
        return TextReader(parser(), wanted, reasoning_marks=marks)

    counts = dialect.reasoning is not None
    if calls is not None or has_grammar:
        thinks = dialect.thinks(end)
        is_plain = calls is None and not thinks
        return Reading(None if is_plain else reader, counts, thinks and dialect.needs_control_tokens(has_tools=False))
    if not dialect.reads(bool(tools)):
        return Reading()
    return Reading(reader, counts, dialect.needs_control_tokens(bool(tools)))


def read_harmony(
    harmony: Harmony,
    body: ChatRequest,
    calls: Calls | None,
    namespaces: Sequence[ToolNamespace],
    token_ids: Sequence[int],
) -> Reading:
    """The same for a model whose answers are read by their tokens; those of the prompt are `token_ids`. A grammar makes
    no more of an answer than what is on its final channel."""
    names = [] if calls is not None else [tool.function.name for tool in callable_tools(body.tools, body.tool_choice)]
    wanted, spells = _wanted(body), body.skip_special_tokens is False

    def reader() -> ChoiceReader:
        answer = None if calls is None else CallReader(calls)
        return harmony.reader(token_ids, names, namespaces, wanted, spells_control_tokens=spells, answer=answer)

    return Reading(reader, counts_reasoning=True)


def _wanted(body: ChatRequest) -> Wanted:
    return Wanted(1 if body.parallel_tool_calls is False else None, body.include_reasoning is not False)


def _text(message: Message) -> str:
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    return "".join(part.text or "" if isinstance(part, ContentPart) else part for part in message.content)


def _reasoning_marks(tokenizer: Tokenizer) -> tuple[int, int] | None:
    opening, closing = tokenizer.token_id(thinking.OPEN), tokenizer.token_id(thinking.CLOSE)
    return None if opening is None or closing is None else (opening, closing)
