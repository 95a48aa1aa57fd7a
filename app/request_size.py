"""How much one request may ask for in all: what n and the number of prompts multiply. Used by the routes' checks."""

from __future__ import annotations

from collections.abc import Sequence

from app.limits import Limits
from protocol.errors import BadRequestError
from protocol.sampling import SamplingParams


def check_prompt_length(prompt_length: int, max_model_len: int) -> None:
    """Raises BadRequestError if nothing can follow the prompt."""
    if prompt_length >= max_model_len:
        raise BadRequestError(
            f"This model's maximum context length is {max_model_len} tokens, but the prompt alone has {prompt_length}. "
            "Please shorten the prompt.",
            code="context_length_exceeded",
        )


def check_num_token_ids(params: SamplingParams, prompt_lengths: Sequence[int], n: int, limits: Limits) -> None:
    """Raises BadRequestError if the engine would be sent more ids than one request may have."""
    own = len(params.allowed_token_ids or ()) + len(params.logit_bias) + len(params.stop_token_ids)
    own += sum(map(len, params.bad_words_token_ids))
    total = n * (sum(prompt_lengths) + len(prompt_lengths) * own)
    if total > limits.max_token_ids:
        raise BadRequestError(
            f"n {n} times {len(prompt_lengths)} prompts with {sum(prompt_lengths)} tokens, and {own} token ids for "
            f"sampling each, make {total} token ids; at most {limits.max_token_ids} are taken in one request",
            param="n" if n > 1 else "prompt",
        )


def check_num_prompt_logprobs(params: SamplingParams, num_prompt_tokens: int, n: int, limits: Limits) -> None:
    """Raises BadRequestError if the answer would have to tell more of its prompts than one may."""
    if params.prompt_logprobs is None:
        return
    total = n * num_prompt_tokens * (params.prompt_logprobs + 1)
    if total > limits.max_prompt_logprobs:
        raise BadRequestError(
            f"n {n} times {num_prompt_tokens} prompt tokens with {params.prompt_logprobs} alternatives each make "
            f"{total} log-probabilities; at most {limits.max_prompt_logprobs} are told in one answer",
            param="prompt_logprobs",
        )
