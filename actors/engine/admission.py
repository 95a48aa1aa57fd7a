"""Whether a request may come in: the app has checked every range, and this is for what is not from the app.

A frame that decodes may still name tokens that do not exist or a temperature that is no number; the runner would die of
it, and with it every other request. Pure; called by the scheduler for each request.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from protocol.lora import LoraRequest
from protocol.messages import EngineCoreRequest
from protocol.sampling import MAX_PATTERN_COUNT, MAX_PATTERN_SIZE, RepetitionDetection, SamplingParams

_INT64 = 2**63


def refusal_of(request: EngineCoreRequest, vocab_size: int) -> str | None:
    """Why it may not, in a sentence for the client; None if it may."""
    for name, moment in (("arrival_time", request.arrival_time), ("deadline", request.deadline)):
        if moment is not None and math.isnan(moment):
            return f"{name} is no time"
    params = request.sampling_params
    for name, token_ids in (
        ("the prompt", request.prompt_token_ids),
        ("the continuation", request.continuation_token_ids),
        ("logit_bias", params.logit_bias),
        ("allowed_token_ids", params.allowed_token_ids or ()),
        ("eos_token_ids", params.eos_token_ids),
        ("stop_token_ids", params.stop_token_ids),
        *(("bad_words", word) for word in params.bad_words_token_ids),
    ):
        if not _are_in(vocab_size, token_ids):
            return f"{name} has token ids outside the vocabulary (0 to {vocab_size - 1})"
    if (pooling := request.pooling) is not None:
        if params.max_tokens or params.grammar or request.continuation_token_ids:
            return "a prompt that is pooled is not gone on with"
        if pooling.dimensions is not None and pooling.dimensions < 1:
            return "dimensions is out of range"
    return next((f"{name} is out of range" for name, is_right in _ranges(params, vocab_size) if not is_right), None)


def adapter_refusal_of(lora: LoraRequest | None, max_loras: int) -> str | None:
    """Why it may not be computed with this adapter."""
    if lora is None:
        return None
    if not max_loras:
        return f"this engine computes without adapters (--enable-lora), and not with {lora.name}"
    return None if 0 < lora.lora_id < _INT64 else "lora_id is out of range"


def _are_in(vocab_size: int, token_ids: Iterable[int]) -> bool:
    return min(token_ids, default=0) >= 0 and max(token_ids, default=0) < vocab_size


def _is_sound(wanted: RepetitionDetection) -> bool:
    """Bounded too: it is looked for after each token, between two steps."""
    sizes = 1 <= wanted.min_pattern_size <= wanted.max_pattern_size <= MAX_PATTERN_SIZE
    return sizes and 2 <= wanted.min_count <= MAX_PATTERN_COUNT


def _ranges(params: SamplingParams, vocab_size: int) -> list[tuple[str, bool]]:
    """Each parameter, and whether it is what protocol/sampling.py says. NaN is in no range."""
    return [
        ("max_tokens", params.max_tokens >= 0),
        ("min_tokens", params.min_tokens >= 0),
        ("seed", -_INT64 <= params.seed < _INT64),
        ("temperature", 0 <= params.temperature < math.inf),
        ("top_p", 0 < params.top_p <= 1),
        ("top_k", 0 <= params.top_k < _INT64),
        ("min_p", 0 <= params.min_p <= 1),
        ("presence_penalty", -2 <= params.presence_penalty <= 2),
        ("frequency_penalty", -2 <= params.frequency_penalty <= 2),
        ("repetition_penalty", 0 < params.repetition_penalty < math.inf),
        ("logit_bias", all(-100 <= bias <= 100 for bias in params.logit_bias.values())),
        ("allowed_token_ids", params.allowed_token_ids != []),
        ("bad_words", all(params.bad_words_token_ids)),
        ("logprobs", params.logprobs is None or 0 <= params.logprobs <= vocab_size),
        ("repetition", params.repetition is None or _is_sound(params.repetition)),
        ("prompt_logprobs", params.prompt_logprobs is None or 0 <= params.prompt_logprobs <= vocab_size),
    ]
