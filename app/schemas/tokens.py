"""POST /tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

from typing import Any

import msgspec

from app.schemas.chat import Message, Tool


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Either `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    """For a prompt the default is true, for messages false: the template writes them."""
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: list[Tool] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeAnswer(msgspec.Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    tokens: list[int]
    model: str | None = None


class DetokenizeAnswer(msgspec.Struct, frozen=True):
    prompt: str
