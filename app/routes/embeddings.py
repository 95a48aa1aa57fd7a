"""POST /v1/embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from quart import Blueprint, Response, request

from app.access_log import access_of
from app.body import read_body
from app.checks import ranged
from app.deadline import deadline_of, within
from app.embedding_inputs import embedding_inputs
from app.embedding_writer import embedding_list
from app.engine import Prompt
from app.header_fields import asked_priority
from app.priority import checked_priority
from app.prompts import name_answer
from app.respond import open_logged_answer
from app.sampling import checked_cache_salt
from app.schemas.embeddings import EmbeddingRequest
from app.services import Services
from app.tracing.request_trace import traced_phase
from protocol.errors import NotImplementedHereError, RequestFailedError
from protocol.pooling import PoolingParams
from protocol.sampling import SamplingParams

_DECODER = msgspec.json.Decoder(EmbeddingRequest)
_NOTHING = SamplingParams(max_tokens=0, seed=0)


def embedding_routes(services: Services) -> Blueprint:
    routes = Blueprint("embeddings", __name__)

    @routes.post("/v1/embeddings")
    async def create_embeddings() -> Response:
        body = await read_body(request, _DECODER, services.limits, services.drain)
        deadline = deadline_of(body.timeout, services.limits)
        head = name_answer(services, body.model, "embd-")
        access = access_of(request)
        pooling = _pooling(services, body)
        priority = checked_priority(asked_priority(body.priority))
        salt = checked_cache_salt(body.cache_salt, services.limits)
        with within(deadline), traced_phase("tokenise"):
            inputs = await embedding_inputs(services, body)
        lora = services.model.lora(body.model)  # it may have been unloaded since its name was looked up
        prompts = [Prompt(token_ids, _NOTHING, priority, salt, lora, pooling) for token_ids in inputs]
        services.request_log.tell(access.label, prompts, 1, False, services.tokenizer)
        vectors: list[bytes] = []
        at_once = services.limits.max_embeddings_at_once
        for first in range(0, len(prompts), at_once):
            part = prompts[first : first + at_once]
            async with open_logged_answer(services, part, 1, access, deadline, goes_on=first > 0) as answer:
                found: dict[int, bytes] = {}
                while not answer.finished:
                    found |= {i: output.embedding for i, output in await answer.receive() if output.embedding}
            vectors += _in_order(found, len(part))
        whole = await embedding_list(head, vectors, sum(map(len, inputs)), body.encoding_format or "float")
        return Response(whole, content_type="application/json")

    return routes


def _pooling(services: Services, body: EmbeddingRequest) -> PoolingParams:
    """Raises NotImplementedHereError for a model whose vectors cannot be computed, BadRequestError for dimensions that
    it has not."""
    pooler = services.pooler
    if pooler.refusal is not None:
        raise NotImplementedHereError(f"This model's embeddings are not computed here: {pooler.refusal}")
    size = services.facts().hidden_size
    if body.dimensions is not None:
        ranged("dimensions", body.dimensions, 1, size, size)
    return PoolingParams(
        pooler.pooling, pooler.normalize if body.normalize is None else body.normalize, body.dimensions
    )


def _in_order(found: dict[int, bytes], count: int) -> Sequence[bytes]:
    if len(found) < count:
        raise RequestFailedError(f"The engine has ended {count - len(found)} inputs without an embedding")
    return [found[index] for index in range(count)]
