"""POST /v1/embeddings: the request, in OpenAI's shape or vLLM's with messages, and the answer."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from app.schemas.chat import Message


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Either `input` or `messages`."""

    model: str | None = None
    input: str | list[str | int | list[int]] | None = None
    """One text, one list of token ids, a list of texts, or a list of lists of token ids."""
    messages: list[Message] | None = None
    """One conversation, as the chat template writes it."""
    encoding_format: Literal["float", "base64"] | None = None
    """"base64" is that of little-endian float32; "float", the default, a list of numbers."""
    dimensions: int | None = None
    """Only the first so many numbers. They mean something by themselves if the model was trained for it."""
    normalize: bool | None = None
    """To length 1; the default is the model's own."""
    truncate_prompt_tokens: int | None = None
    """The most tokens to keep of each input; -1 is as many as the model takes."""
    truncation_side: Literal["left", "right"] | None = None
    """Where an input is cut; "right", the default, keeps its beginning."""
    add_special_tokens: bool | None = None
    """For an input the default is true, for messages false: the template writes them."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = None
    priority: int | None = None
    timeout: float | None = None
    """Seconds that the request may take, from when its body is here."""
    user: str | None = None


class Embedding(msgspec.Struct, frozen=True):
    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage
