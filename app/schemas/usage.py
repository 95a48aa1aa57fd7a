"""How many tokens an answer took."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET
    """Of models whose thoughts can be told apart."""


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> Usage:
    return Usage(
        prompt_tokens, completion_tokens, prompt_tokens + completion_tokens, PromptTokensDetails(cached_tokens)
    )


def with_reasoning(usage: Usage, num_reasoning_tokens: int) -> Usage:
    """The same, with how many of its completion tokens were thoughts."""
    details = CompletionTokensDetails(min(num_reasoning_tokens, usage.completion_tokens))
    return msgspec.structs.replace(usage, completion_tokens_details=details)
