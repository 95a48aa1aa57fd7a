"""A conversation to token ids, with the checkpoint's chat template, as transformers renders it.

Text that comes from a client stays text (see app/control_tokens.py). Used by the chat and tokenize routes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any

import jinja2
import trio

from app.control_tokens import hide_control_tokens
from app.conversation import Conversation
from app.template_environment import template_environment
from app.tokenizer import Tokenizer
from protocol.errors import BadRequestError, CheckpointError

_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
_INLINE_BYTES = 20_000
"""Conversations up to this size are rendered on the spot; bigger ones in a worker thread."""
_NO_PYTHON = (SyntaxError, RecursionError, ValueError, MemoryError, AssertionError)
"""Jinja makes Python of a template, which may be nested too deep, or have a `break` or a number that is none there."""
_NO_TEXT = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError, MemoryError)


class Template(ABC):
    """What makes the prompt of a conversation. Immutable after construction, so that worker threads may share it."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(2)

    async def encode(self, conversation: Conversation, tokenizer: Tokenizer, max_model_len: int) -> list[int]:
        """The prompt's token ids.

        Raises BadRequestError with the template's own message, and for a text that can never fit into `max_model_len`
        tokens; one that merely is too long is found later.
        """
        encode = partial(self.encode_sync, conversation, tokenizer, max_model_len)
        if conversation.num_bytes() <= _INLINE_BYTES:
            return encode()
        return await trio.to_thread.run_sync(encode, limiter=self._limiter)

    @abstractmethod
    def encode_sync(self, conversation: Conversation, tokenizer: Tokenizer, max_model_len: int) -> list[int]:
        """`encode` on the spot, however big the conversation is."""


class ChatTemplate(Template):
    """The checkpoint's, in Jinja."""

    def __init__(self, source: str, special_tokens: dict[str, str] | None = None) -> None:
        """`special_tokens` are the template's variables bos_token, eos_token, … Raises CheckpointError."""
        super().__init__()
        try:
            self._template = template_environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise CheckpointError(f"the chat template is no valid Jinja (line {error.lineno}): {error}") from error
        except _NO_PYTHON as error:
            raise CheckpointError(f"the chat template cannot be compiled: {error or type(error).__name__}") from error
        self._special_tokens = special_tokens or {}

    def encode_sync(self, conversation: Conversation, tokenizer: Tokenizer, max_model_len: int) -> list[int]:
        conversation.check_num_values()
        hidden = hide_control_tokens(conversation.variables(), tokenizer)
        text = self.render(conversation, hidden.variables)
        tokenizer.check_length(text, max_model_len)
        if not hidden.spellings:
            return tokenizer.encode(text, add_special_tokens=conversation.add_special_tokens)
        return tokenizer.encode_parts(text, hidden.spellings)

    def render(self, conversation: Conversation, variables: dict[str, Any]) -> str:
        """The prompt's text, from the conversation's `variables` or from what stands for them."""
        if conversation.continue_final_message:
            _mark_end(variables["messages"][-1])
        try:
            text = self._template.render({**self._special_tokens, **variables})
        except jinja2.TemplateError as error:
            raise BadRequestError(f"The chat template refuses these messages: {error}", param="messages") from error
        except RecursionError as error:
            raise BadRequestError("These messages are nested too deep for the chat template") from error
        except _NO_TEXT as error:
            raise BadRequestError(
                f"The chat template cannot render these messages: {error or type(error).__name__}", param="messages"
            ) from error
        return _cut_at_mark(text) if conversation.continue_final_message else text


def _mark_end(message: dict[str, Any]) -> None:
    if not isinstance(message.get("content"), str):
        raise BadRequestError("continue_final_message needs a final message with text", param="messages")
    message["content"] += _CONTINUE_TAG


def _cut_at_mark(text: str) -> str:
    at = text.rfind(_CONTINUE_TAG.strip())
    if at < 0:
        raise BadRequestError(
            "continue_final_message: the chat template leaves the final message out", param="continue_final_message"
        )
    whole = text.startswith(_CONTINUE_TAG, at)
    return text[:at] if whole else text[:at].rstrip()  # the template trims the message, so its end goes too
