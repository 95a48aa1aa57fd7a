"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from quart import Blueprint, Response, request

from app.body import read_body
from app.checks import check_token_ids
from app.completion_writer import CompletionForm, CompletionWriter, EchoedPrompt
from app.deadline import deadline_of, within
from app.grammar import RequestGrammars
from app.header_fields import with_headers
from app.logprobs import EchoedToken
from app.prompts import engine_prompts, response_head, tokens_as_ids
from app.request_size import check_prompt_length
from app.respond import respond
from app.sampling import Wanted, checked_logprobs, num_choices
from app.schemas.completions import CompletionRequest
from app.services import Services
from app.sparse_stream import checked_interval, with_interval
from app.tracing.request_trace import traced_phase
from app.truncation import bounded_text, truncated
from protocol.errors import BadRequestError

_DECODER = msgspec.json.Decoder(CompletionRequest)
_DEFAULT_MAX_TOKENS = 16


def completion_routes(services: Services, grammars: RequestGrammars) -> Blueprint:
    routes = Blueprint("completions", __name__)

    @routes.post("/v1/completions")
    async def create_completion() -> Response:
        body = with_headers(await read_body(request, _DECODER, services.limits, services.drain))
        checked_interval(body)
        deadline = deadline_of(body.timeout, services.limits)
        head = response_head(services, body, "cmpl-")
        services.facts()
        if body.suffix:
            raise BadRequestError("suffix is not supported by this model", param="suffix")
        wanted = _wanted(body, services)
        with within(deadline):
            grammar = await grammars.grammar_of(body)
            given = _prompts(body, services.limits.max_prompts, services.facts().max_model_len)
            with traced_phase("tokenise"):
                whole = await _token_ids(services, body, given)
            token_ids = [truncated(ids, body, wanted, services.facts().max_model_len) for ids in whole]
        prompts = engine_prompts(services, body, wanted, token_ids, grammar)
        as_ids = tokens_as_ids(services, body)
        with within(deadline):
            echoes = await _echoes(services, given, whole, token_ids, as_ids) if body.echo else None
            decode = services.tokenizer.decode_long
            prompt_texts = [await decode(ids) for ids in token_ids] if body.return_prompt_text else None
        n = num_choices(body, services.limits)
        form = CompletionForm(
            body.logprobs is not None,
            body.prompt_logprobs is not None,
            bool(body.return_token_ids),
            echoes,
            token_ids,
            n,
            as_ids,
            prompt_texts,
        )
        return await respond(
            services,
            prompts,
            n,
            bool(body.stream),
            lambda answer: with_interval(CompletionWriter(head, form, answer), body, services.stream_interval),
            deadline,
        )

    return routes


def _prompts(body: CompletionRequest, max_prompts: int, max_model_len: int) -> Sequence[str | list[int]]:
    """One entry per prompt, each a text or token ids.

    Raises BadRequestError for a mixture, for emptiness and for lists that are too long, before they are walked through.
    """
    prompt = body.prompt
    if prompt is None:
        raise BadRequestError("prompt is missing", param="prompt")
    if isinstance(prompt, str):
        return [prompt]
    if prompt and isinstance(prompt[0], int):
        if body.truncate_prompt_tokens is None:
            check_prompt_length(len(prompt), max_model_len)
    elif len(prompt) > max_prompts:
        raise BadRequestError(f"prompt has {len(prompt)} prompts; at most {max_prompts} are taken", param="prompt")
    texts = [item for item in prompt if isinstance(item, str)]
    ids = [item for item in prompt if isinstance(item, int)]
    lists = [item for item in prompt if isinstance(item, list)]
    found: Sequence[str | list[int]] = [ids] if ids else (texts or lists)
    if not prompt or max(len(texts), len(ids), len(lists)) < len(prompt):
        raise BadRequestError(
            "prompt must be a text, a list of texts, a list of token ids or a list of such lists, and not empty",
            param="prompt",
        )
    return found


async def _token_ids(
    services: Services, body: CompletionRequest, prompts: Sequence[str | list[int]]
) -> Sequence[list[int]]:
    """Raises BadRequestError for ids outside the vocabulary, texts that can never fit, and empty prompts."""
    max_model_len = services.facts().max_model_len
    most = services.tokenizer.max_characters(max_model_len)
    texts = [bounded_text(prompt, body, most) for prompt in prompts if isinstance(prompt, str)]
    for text in texts:
        services.tokenizer.check_length(text, max_model_len)
    lists = [prompt for prompt in prompts if isinstance(prompt, list)]
    for token_ids in lists:
        if body.truncate_prompt_tokens is None:
            check_prompt_length(len(token_ids), max_model_len)
        check_token_ids("prompt", token_ids, services.vocab_size())
    adds = body.add_special_tokens is not False
    found = lists or await services.tokenizer.encode_all(texts, add_special_tokens=adds)
    if not all(found):
        raise BadRequestError(
            "prompt must not be empty: this model needs at least one token to go on from", param="prompt"
        )
    return found


def _wanted(body: CompletionRequest, services: Services) -> Wanted:
    logprobs = checked_logprobs("logprobs", body.logprobs, services.limits)
    prompt_logprobs = checked_logprobs("prompt_logprobs", body.prompt_logprobs, services.limits)
    if body.echo and logprobs is not None:
        prompt_logprobs = max(logprobs, prompt_logprobs or 0)
    return Wanted(
        max_tokens=body.max_tokens,
        max_tokens_param="max_tokens",
        default_max_tokens=_DEFAULT_MAX_TOKENS,
        min_max_tokens=0,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


async def _echoes(
    services: Services,
    given: Sequence[str | list[int]],
    whole: Sequence[list[int]],
    token_ids: Sequence[list[int]],
    as_ids: bool,
) -> list[EchoedPrompt]:
    """A text comes back as it was sent; token ids, and what is left of a text that was cut, as the tokeniser spells
    them."""
    echoes = []
    for text, uncut, ids in zip(given, whole, token_ids, strict=True):
        echoed = text if isinstance(text, str) and len(ids) == len(uncut) else await services.tokenizer.decode_long(ids)
        first = services.tokenizer.decode(ids[:1])
        echoes.append(EchoedPrompt(echoed, EchoedToken(first, f"token_id:{ids[0]}" if as_ids else first)))
    return echoes
