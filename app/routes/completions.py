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
from app.prompts import engine_prompts, response_head
from app.request_size import check_prompt_length
from app.respond import respond
from app.sampling import Wanted, checked_logprobs, num_choices
from app.schemas.completions import CompletionRequest
from app.services import Services
from protocol.errors import BadRequestError

_DECODER = msgspec.json.Decoder(CompletionRequest)
_DEFAULT_MAX_TOKENS = 16


def completion_routes(services: Services, grammars: RequestGrammars) -> Blueprint:
    routes = Blueprint("completions", __name__)

    @routes.post("/v1/completions")
    async def create_completion() -> Response:
        body = await read_body(request, _DECODER, services.limits, services.drain)
        deadline = deadline_of(body.timeout, services.limits)
        head = response_head(services, body, "cmpl")
        services.facts()
        if body.suffix:
            raise BadRequestError("suffix is not supported by this model", param="suffix")
        wanted = _wanted(body, services)
        with within(deadline):
            grammar = await grammars.grammar_of(body)
            texts = _prompts(body.prompt, services.limits.max_prompts, services.facts().max_model_len)
            token_ids = await _token_ids(services, body, texts)
        prompts = engine_prompts(services, body, wanted, token_ids, grammar)
        n = num_choices(body, services.limits)
        form = CompletionForm(
            body.logprobs is not None,
            body.prompt_logprobs is not None,
            bool(body.return_token_ids),
            _echoes(services, texts, token_ids) if body.echo else None,
            token_ids,
            n,
        )
        return await respond(
            services, prompts, n, bool(body.stream), lambda answer: CompletionWriter(head, form, answer), deadline
        )

    return routes


def _prompts(
    prompt: str | list[str | int | list[int]] | None, max_prompts: int, max_model_len: int
) -> Sequence[str | list[int]]:
    """One entry per prompt, each a text or token ids.

    Raises BadRequestError for a mixture, for emptiness and for lists that are too long, before they are walked through.
    """
    if prompt is None:
        raise BadRequestError("prompt is missing", param="prompt")
    if isinstance(prompt, str):
        return [prompt]
    if prompt and isinstance(prompt[0], int):
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
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    for text in texts:
        services.tokenizer.check_length(text, services.facts().max_model_len)
    lists = [prompt for prompt in prompts if isinstance(prompt, list)]
    for token_ids in lists:
        check_prompt_length(len(token_ids), services.facts().max_model_len)
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


def _echoes(services: Services, texts: Sequence[str | list[int]], token_ids: Sequence[list[int]]) -> list[EchoedPrompt]:
    """A text comes back as it was sent; token ids as the tokeniser spells them."""
    decode = services.tokenizer.decode
    return [
        EchoedPrompt(text if isinstance(text, str) else decode(ids), decode(ids[:1]))
        for text, ids in zip(texts, token_ids, strict=True)
    ]
