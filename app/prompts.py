"""Token ids and checked fields to the engine's prompts. Shared by chat and completions."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec
from quart import has_request_context, request

from app.access_log import access_of
from app.engine import Prompt
from app.head import Head
from app.kv_transfer import kv_params
from app.priority import checked_priority
from app.request_size import check_num_prompt_logprobs, check_num_token_ids
from app.sampling import (
    ModelBounds,
    Wanted,
    checked_cache_salt,
    for_prompt,
    num_choices,
    sampling_params,
)
from app.schemas.sampling import SamplingFields
from app.seeds import checked_seed, choice_seed
from app.services import Services
from protocol.errors import BadRequestError
from protocol.sampling import Grammar


def engine_prompts(
    services: Services, fields: SamplingFields, wanted: Wanted, token_ids: Sequence[list[int]], grammar: Grammar | None
) -> list[Prompt]:
    """`n` prompts for each list of token ids: choice i of prompt p at p * n + i. Raises BadRequestError, and
    NotFoundError for a model that has gone."""
    n = num_choices(fields, services.limits)
    if n * len(token_ids) > services.limits.max_choices:
        raise BadRequestError(
            f"n {n} for {len(token_ids)} prompts gives {n * len(token_ids)} choices; at most "
            f"{services.limits.max_choices} are made at once",
            param="n",
        )
    bounds = ModelBounds(
        services.tokenizer, services.vocab_size(), services.facts().max_model_len, services.model.eos_token_ids
    )
    priority = checked_priority(fields.priority)
    lora = services.model.lora(fields.model)  # it may have been unloaded since its name was looked up
    seed = checked_seed(fields.seed)
    salt = checked_cache_salt(fields.cache_salt, services.limits)
    shared = sampling_params(fields, wanted, bounds, services.model.generation_config, services.limits, grammar)
    lengths = [len(ids) for ids in token_ids]
    check_num_token_ids(shared, lengths, n, services.limits)
    check_num_prompt_logprobs(shared, sum(lengths), n, services.limits)
    kv = kv_params(fields.kv_transfer_params, n * len(token_ids), services.kv_policy)
    prompts: list[Prompt] = []
    for ids in token_ids:
        base = services.seed() if seed is None else seed
        most = services.model.generation_config.max_new_tokens
        params = for_prompt(shared, wanted, len(ids), bounds.max_model_len, base, most)
        seeded = (msgspec.structs.replace(params, seed=choice_seed(base, choice)) for choice in range(n))
        prompts += [Prompt(ids, each, priority, salt, lora, kv=kv) for each in seeded]
    return prompts


def tokens_as_ids(services: Services, fields: SamplingFields) -> bool:
    """Whether log-probabilities name tokens by their ids."""
    asked = fields.return_tokens_as_token_ids
    return services.return_tokens_as_token_ids if asked is None else asked


def name_answer(services: Services, asked_model: str | None, id_prefix: str) -> tuple[str, int, str]:
    """The id, time and model that a new answer tells, of which the access log tells two. The id is of the server's own
    making, behind the prefix of its API: what clients call their requests is only a label. Raises NotFoundError."""
    answer_id = f"{id_prefix}{secrets.token_hex(16)}"
    model = services.model.name(asked_model)
    if has_request_context():
        access = access_of(request)
        access.answer_id, access.model = answer_id, model
    return answer_id, int(services.clock()), model


def response_head(services: Services, fields: SamplingFields, id_prefix: str) -> Head:
    """Of an answer of one of the APIs that generate, as `name_answer` names it. Raises NotFoundError."""
    options = fields.stream_options
    return Head(
        *name_answer(services, fields.model, id_prefix),
        services.fingerprint,
        include_usage=bool(options and options.include_usage) or services.force_include_usage,
        continuous_usage=bool(options and options.include_usage and options.continuous_usage_stats),
    )
