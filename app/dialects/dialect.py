"""How the served model writes what is not plain text, and the parser for one choice of it. Used by app/chat.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from attrs import frozen

from app.choice_reader import TextParser
from app.dialects import harmony, hermes, llama3_json, mistral, qwen3_coder, thinking
from app.dialects.harmony import HarmonyText
from app.dialects.hermes import HermesText
from app.dialects.llama3_json import LlamaText
from app.dialects.markers import Markers
from app.dialects.mistral import MistralText
from app.dialects.names import DEEPSEEK_R1, HERMES, LLAMA3_JSON, MISTRAL, OPENAI, QWEN3_CODER
from app.dialects.plain import PlainText, WithoutControlTokens
from app.dialects.pythonic import PythonicText
from app.dialects.qwen3_coder import Qwen3CoderText
from app.dialects.thinking import Thinking, ThinkText
from protocol.sampling import Thoughts

_TOOL_MARKS: Mapping[str, Sequence[str]] = {
    HERMES: (hermes.OPEN, hermes.CLOSE),
    LLAMA3_JSON: (llama3_json.TAG,),
    MISTRAL: (mistral.OPEN, *mistral.INNER),
    QWEN3_CODER: (qwen3_coder.OPEN, qwen3_coder.CLOSE),
}


@frozen
class PromptEnd:
    """What of a rendered prompt its answer continues."""

    thinking: Thinking = Thinking.UNSAID
    after_start: str = ""
    """For Harmony: what follows the last <|start|>."""


@frozen(slots=False)
class Dialect:
    """Frozen; the same for every request."""

    tools: str | None = None
    """Name of the tool parser."""
    reasoning: str | None = None
    """Name of the reasoning parser; `openai_gptoss` if and only if `tools` is `openai`."""
    control_tokens: frozenset[str] = frozenset()
    """Spellings of all of the vocabulary's control tokens."""

    @property
    def is_harmony(self) -> bool:
        return self.tools == OPENAI

    def reads(self, has_tools: bool) -> bool:
        """Whether answers are more than plain text."""
        return self.reasoning is not None or (has_tools and self.tools is not None)

    def thinks(self, prompt: PromptEnd) -> bool:
        """Whether thoughts may come before an answer that a grammar makes. In Harmony a grammar holds from the first
        token on."""
        return self.reasoning is not None and not self.is_harmony and prompt.thinking is not Thinking.CLOSED

    def thoughts(self, prompt: PromptEnd, marks: tuple[int, int] | None) -> Thoughts | None:
        """The same for the grammar; `marks` are the tokens before and after thoughts, if these are one token each."""
        if not self.thinks(prompt):
            return None
        opening, closing = (thinking.OPEN, thinking.CLOSE) if marks is None else marks
        return Thoughts("" if self._where(prompt) is Thinking.OPEN else opening, closing)

    def made_by_grammar(self, inner: TextParser, prompt: PromptEnd, keeps_control_tokens: bool) -> TextParser:
        """The parser of such an answer; `inner` reads what the grammar makes."""
        if not self.thinks(prompt):
            return inner
        return self._visible(ThinkText(self._where(prompt), inner), False, keeps_control_tokens)

    def needs_control_tokens(self, has_tools: bool) -> bool:
        """Whether some of the marks are control tokens, which the output handler leaves out unless it is told."""
        return not self.control_tokens.isdisjoint(self._marks(has_tools))

    def parser(
        self,
        tools: Mapping[str, Mapping[str, Any] | None],
        has_tools: bool,
        prompt: PromptEnd,
        keeps_control_tokens: bool,
    ) -> TextParser:
        """Of one choice. `tools` are the functions that may be called, with their parameters' schemas;
        `keeps_control_tokens`: also those that mean nothing here are to be seen."""
        return self._visible(self._answer_parser(tools, has_tools, prompt), has_tools, keeps_control_tokens)

    def _visible(self, parser: TextParser, has_tools: bool, keeps_control_tokens: bool) -> TextParser:
        if not self.needs_control_tokens(has_tools) or keeps_control_tokens:
            return parser
        return WithoutControlTokens(self._without_marks if has_tools else self._without_thinking_marks, parser)

    def _answer_parser(
        self, tools: Mapping[str, Mapping[str, Any] | None], has_tools: bool, prompt: PromptEnd
    ) -> TextParser:
        if self.is_harmony:
            return HarmonyText(tools, prompt.after_start)
        parser = self._tool_parser(tools) if has_tools else PlainText()
        if self.reasoning is None:
            return parser
        return ThinkText(self._where(prompt), parser)

    def _where(self, prompt: PromptEnd) -> Thinking:
        """DeepSeek R1 begins with thoughts, whether or not a mark says so."""
        unsaid = prompt.thinking is Thinking.UNSAID and self.reasoning == DEEPSEEK_R1
        return Thinking.OPEN if unsaid else prompt.thinking

    def _tool_parser(self, tools: Mapping[str, Mapping[str, Any] | None]) -> TextParser:
        hidden = self.control_tokens.intersection(_TOOL_MARKS.get(self.tools or "", ()))
        match self.tools:
            case "hermes":
                return HermesText(tools, hidden)
            case "llama3_json":
                return LlamaText(tools, hidden)
            case "mistral":
                return MistralText(tools, hidden)
            case "qwen3_coder":
                return Qwen3CoderText(tools, hidden)
            case "pythonic":
                return PythonicText(tools)
        return PlainText()

    def _marks(self, has_tools: bool) -> Sequence[str]:
        if self.is_harmony:
            return harmony.MARKS
        tools = _TOOL_MARKS.get(self.tools or "", ()) if has_tools else ()
        return (*tools, thinking.OPEN, thinking.CLOSE) if self.reasoning is not None else tools

    @cached_property
    def _without_marks(self) -> Markers:
        return Markers(self.control_tokens.difference(self._marks(has_tools=True)))

    @cached_property
    def _without_thinking_marks(self) -> Markers:
        return Markers(self.control_tokens.difference(self._marks(has_tools=False)))


def prompt_end(rendered_end: str, continued: str | None) -> PromptEnd:
    """`rendered_end`: the last part of the prompt's text, with control tokens; `continued`: the answer that the prompt
    leaves unfinished, if it does."""
    where = thinking.thinking_after(rendered_end) if continued is None else thinking.thinking_in(continued)
    _, found, after = rendered_end.rpartition(harmony.START)
    return PromptEnd(where, after if found else "")
