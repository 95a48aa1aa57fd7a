"""A request's fields to SamplingParams, with every check that stands between a client and the engine.

Pure: what it needs of the model comes as ModelBounds, what it needs of the grammar compiler as a finished Grammar.
"""

from __future__ import annotations

import msgspec
from attrs import frozen

from app.checks import check_token_ids, ranged, short
from app.limits import Limits
from app.model_card import GenerationConfig
from app.request_size import check_prompt_length
from app.schemas.sampling import RepetitionDetection as RepetitionDetectionField
from app.schemas.sampling import SamplingFields
from app.tokenizer import Tokenizer
from protocol.errors import BadRequestError, NotImplementedHereError
from protocol.sampling import MAX_PATTERN_COUNT, MAX_PATTERN_SIZE, Grammar, RepetitionDetection, SamplingParams

_GREEDY_BELOW = 1e-4
"""Dividing logits by less only overflows; the result is the best token either way."""


@frozen
class ModelBounds:
    """What of the model bounds a request."""

    tokenizer: Tokenizer
    vocab_size: int
    """Token ids are below this."""
    max_model_len: int
    eos_token_ids: tuple[int, ...]


@frozen
class Wanted:
    """What chat and completions name differently."""

    max_tokens: int | None
    max_tokens_param: str
    default_max_tokens: int | None
    """None: whatever the context has left."""
    min_max_tokens: int
    """The smallest max_tokens that makes sense: 0 where the prompt alone may be the answer."""
    logprobs: int | None
    prompt_logprobs: int | None


def for_prompt(
    params: SamplingParams,
    wanted: Wanted,
    prompt_length: int,
    max_model_len: int,
    seed: int,
    most_tokens: int | None = None,
) -> SamplingParams:
    """The parameters of one of a request's prompts; `seed` is the request's or a random one, `most_tokens` the
    server's limit for any answer, to which longer ones are cut, as vLLM does. Raises BadRequestError."""
    max_tokens = _max_tokens(wanted, prompt_length, max_model_len)
    max_tokens = max_tokens if most_tokens is None else min(max_tokens, most_tokens)
    if params.min_tokens > max_tokens:
        raise BadRequestError(
            f"min_tokens {short(params.min_tokens)} is above max_tokens {max_tokens}", param="min_tokens"
        )
    return msgspec.structs.replace(params, max_tokens=max_tokens, seed=seed)


def sampling_params(
    fields: SamplingFields,
    wanted: Wanted,
    bounds: ModelBounds,
    defaults: GenerationConfig,
    limits: Limits,
    grammar: Grammar | None,
) -> SamplingParams:
    """What all prompts of a request share; `for_prompt` sets max_tokens and seed.

    Raises BadRequestError naming field, limit and value.
    """
    _refuse_unsupported(fields)
    eos = [token_id for token_id in bounds.eos_token_ids if token_id < bounds.vocab_size]
    return SamplingParams(
        max_tokens=0,
        seed=0,
        temperature=_temperature(fields, defaults),
        top_p=_top_p(fields, defaults),
        top_k=_top_k(fields, defaults, bounds.vocab_size),
        min_p=ranged("min_p", fields.min_p, 0.0, 1.0, defaults.min_p or 0.0),
        presence_penalty=ranged("presence_penalty", fields.presence_penalty, -2.0, 2.0, 0.0),
        frequency_penalty=ranged("frequency_penalty", fields.frequency_penalty, -2.0, 2.0, 0.0),
        repetition_penalty=_repetition_penalty(fields, defaults),
        logit_bias=_logit_bias(fields.logit_bias, bounds.vocab_size, limits),
        allowed_token_ids=_allowed(fields, bounds.vocab_size),
        bad_words_token_ids=_bad_words(fields.bad_words or [], bounds, limits),
        min_tokens=ranged("min_tokens", fields.min_tokens, 0, None, 0),
        eos_token_ids=[] if fields.ignore_eos else eos,
        stop_token_ids=_stop_token_ids(fields.stop_token_ids or [], bounds.vocab_size, limits),
        stop=_stop(fields.stop, limits),
        include_stop_str_in_output=bool(fields.include_stop_str_in_output),
        skip_special_tokens=fields.skip_special_tokens is not False,
        spaces_between_special_tokens=fields.spaces_between_special_tokens is not False,
        logprobs=wanted.logprobs,
        prompt_logprobs=wanted.prompt_logprobs,
        grammar=grammar,
        repetition=_repetition(fields.repetition_detection),
    )


def num_choices(fields: SamplingFields, limits: Limits) -> int:
    """The checked n."""
    n = ranged("n", fields.n, 1, limits.max_n, 1)
    if fields.best_of is not None and fields.best_of != n:
        raise BadRequestError(f"best_of must equal n ({n}), not {short(fields.best_of)}", param="best_of")
    return n


def checked_cache_salt(salt: str | None, limits: Limits) -> str:
    """Empty if there is none."""
    if salt is None:
        return ""
    if not 1 <= len(salt) <= limits.max_cache_salt_length:
        raise BadRequestError(
            f"cache_salt must have 1 to {limits.max_cache_salt_length} characters, not {len(salt)}", param="cache_salt"
        )
    return salt


def checked_logprobs(name: str, value: int | None, limits: Limits) -> int | None:
    """How many alternatives, bounded by the server's limit."""
    return None if value is None else ranged(name, value, 0, limits.max_logprobs, 0)


def _refuse_unsupported(fields: SamplingFields) -> None:
    asks = {
        "use_beam_search": fields.use_beam_search,
        "length_penalty": fields.length_penalty not in (None, 1.0),
        "logprob_token_ids": fields.logprob_token_ids,
        "ec_transfer_params": fields.ec_transfer_params,
        "vllm_xargs": fields.vllm_xargs,
    }
    for name in asks:
        if asks[name]:
            raise NotImplementedHereError(f"{name} is not supported", param=name)
    if fields.stream_options is not None and not fields.stream:
        raise BadRequestError("stream_options is only allowed with stream", param="stream_options")


def _max_tokens(wanted: Wanted, prompt_length: int, max_model_len: int) -> int:
    check_prompt_length(prompt_length, max_model_len)
    left = max_model_len - prompt_length
    if wanted.max_tokens is None:
        return left if wanted.default_max_tokens is None else min(left, wanted.default_max_tokens)
    asked = ranged(wanted.max_tokens_param, wanted.max_tokens, wanted.min_max_tokens, None, 0)
    if asked > left:
        raise BadRequestError(
            f"This model's maximum context length is {max_model_len} tokens, but {prompt_length} prompt tokens and "
            f"{wanted.max_tokens_param} {short(asked)} were asked for together. Please ask for fewer.",
            param=wanted.max_tokens_param,
            code="context_length_exceeded",
        )
    return asked


def _temperature(fields: SamplingFields, defaults: GenerationConfig) -> float:
    default = 0.0 if defaults.do_sample is False and defaults.temperature is None else defaults.temperature
    temperature = ranged("temperature", fields.temperature, 0.0, 2.0, 1.0 if default is None else default)
    return 0.0 if temperature < _GREEDY_BELOW else temperature


def _top_p(fields: SamplingFields, defaults: GenerationConfig) -> float:
    top_p = ranged("top_p", fields.top_p, 0.0, 1.0, defaults.top_p or 1.0)
    if top_p == 0.0:
        raise BadRequestError("top_p must be above 0 and at most 1, not 0; for greedy use temperature 0", param="top_p")
    return top_p


def _top_k(fields: SamplingFields, defaults: GenerationConfig, vocab_size: int) -> int:
    top_k = ranged("top_k", fields.top_k, -1, None, defaults.top_k or 0)
    return 0 if top_k in (-1, 0) or top_k >= vocab_size else top_k


def _repetition_penalty(fields: SamplingFields, defaults: GenerationConfig) -> float:
    penalty = fields.repetition_penalty
    if penalty is None:
        return defaults.repetition_penalty or 1.0
    if not 0.0 < penalty <= 100.0:
        raise BadRequestError(
            f"repetition_penalty must be above 0 and at most 100, not {penalty!r}", param="repetition_penalty"
        )
    return penalty


def _repetition(asked: RepetitionDetectionField | None) -> RepetitionDetection | None:
    name = "repetition_detection"
    if asked is None:
        return None
    longest = ranged(f"{name}.max_pattern_size", asked.max_pattern_size, 0, MAX_PATTERN_SIZE, 0)
    shortest = ranged(f"{name}.min_pattern_size", asked.min_pattern_size, 0, longest, 0)
    if longest == 0:
        return None
    count = ranged(f"{name}.min_count", asked.min_count or 0, 2, MAX_PATTERN_COUNT, 0)
    return RepetitionDetection(longest, max(1, shortest), count)


def _logit_bias(bias: dict[str, float] | None, vocab_size: int, limits: Limits) -> dict[int, float]:
    if not bias:
        return {}
    if len(bias) > limits.max_logit_bias:
        raise BadRequestError(
            f"logit_bias has {len(bias)} entries; at most {limits.max_logit_bias} are taken", param="logit_bias"
        )
    found: dict[int, float] = {}
    for key, value in bias.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) < vocab_size):
            raise BadRequestError(
                f"logit_bias: {short(key)} is no token id of the vocabulary (0 to {vocab_size - 1})", param="logit_bias"
            )
        found[int(key)] = ranged("logit_bias", value, -100.0, 100.0, 0.0)
    return found


def _allowed(fields: SamplingFields, vocab_size: int) -> list[int] | None:
    allowed = fields.allowed_token_ids
    if allowed is None:
        return None
    if not allowed:
        raise BadRequestError("allowed_token_ids must not be empty", param="allowed_token_ids")
    if len(allowed) > vocab_size:
        raise BadRequestError(
            f"allowed_token_ids has {len(allowed)} entries; at most {vocab_size} are taken, the size of the vocabulary",
            param="allowed_token_ids",
        )
    check_token_ids("allowed_token_ids", allowed, vocab_size)
    return sorted(set(allowed))


def _stop_token_ids(token_ids: list[int], vocab_size: int, limits: Limits) -> list[int]:
    if len(token_ids) > limits.max_stop_token_ids:
        raise BadRequestError(
            f"stop_token_ids has {len(token_ids)} entries; at most {limits.max_stop_token_ids} are taken",
            param="stop_token_ids",
        )
    check_token_ids("stop_token_ids", token_ids, vocab_size)
    return list(dict.fromkeys(token_ids))


def _stop(stop: str | list[str] | None, limits: Limits) -> list[str]:
    found = [stop] if isinstance(stop, str) else list(stop or [])
    if len(found) > limits.max_stop:
        raise BadRequestError(f"stop has {len(found)} strings; at most {limits.max_stop} are taken", param="stop")
    for string in found:
        if not string:
            raise BadRequestError("stop must not contain an empty string", param="stop")
        if len(string) > limits.max_stop_length:
            raise BadRequestError(
                f"stop has a string of {len(string)} characters; at most {limits.max_stop_length} are taken",
                param="stop",
            )
    return list(dict.fromkeys(found))


def _bad_words(words: list[str], bounds: ModelBounds, limits: Limits) -> list[list[int]]:
    """Each word as it is spelled at the start of a text and after a blank: these are different tokens."""
    if len(words) > limits.max_bad_words:
        raise BadRequestError(
            f"bad_words has {len(words)} entries; at most {limits.max_bad_words} are taken", param="bad_words"
        )
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        if len(word) > limits.max_bad_word_length:
            raise BadRequestError(
                f"bad_words has a word of {len(word)} characters; at most {limits.max_bad_word_length} are taken",
                param="bad_words",
            )
        spelled = [
            tuple(bounds.tokenizer.encode(prefix + word.lstrip(" "), add_special_tokens=False, literal=True))
            for prefix in ("", " ")
        ]
        if not word.strip(" ") or not all(spelled):
            raise BadRequestError(f"bad_words: {short(word)} is no word that the tokeniser knows", param="bad_words")
        found.update(dict.fromkeys(spelled))
    return [list(token_ids) for token_ids in found]
