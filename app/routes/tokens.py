"""POST /tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

import msgspec
from quart import Blueprint, Response, request

from app.body import read_body
from app.calls import check_tools
from app.chat import encode_chat
from app.checks import check_token_ids
from app.conversation import conversation_of
from app.schemas.tokens import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest
from app.services import Services
from app.template_source import template_for
from protocol.errors import BadRequestError

_TOKENIZE = msgspec.json.Decoder(TokenizeRequest)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeRequest)


def token_routes(services: Services) -> Blueprint:
    routes = Blueprint("tokens", __name__)

    @routes.post("/tokenize")
    async def tokenize() -> Response:
        body = await read_body(request, _TOKENIZE, services.limits, services.drain)
        services.model.name(body.model)
        max_model_len = services.facts().max_model_len
        token_ids = await _token_ids(body, services)
        strings = [services.tokenizer.token(token_id) for token_id in token_ids] if body.return_token_strs else None
        answer = TokenizeAnswer(len(token_ids), max_model_len, token_ids, strings)
        return Response(msgspec.json.encode(answer), content_type="application/json")

    @routes.post("/detokenize")
    async def detokenize() -> Response:
        body = await read_body(request, _DETOKENIZE, services.limits, services.drain)
        services.model.name(body.model)
        check_token_ids("tokens", body.tokens, services.vocab_size())
        answer = DetokenizeAnswer(await services.tokenizer.decode_long(body.tokens))
        return Response(msgspec.json.encode(answer), content_type="application/json")

    return routes


async def _token_ids(body: TokenizeRequest, services: Services) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise BadRequestError("Exactly one of prompt and messages is needed", param="prompt")
    if body.prompt is not None:
        services.tokenizer.check_length(body.prompt, services.facts().max_model_len)
        adds = body.add_special_tokens is not False
        return (await services.tokenizer.encode_all([body.prompt], add_special_tokens=adds))[0]
    template = await template_for(services, body.chat_template)
    check_tools(body.tools, services.limits.max_tools)
    conversation = conversation_of(
        body.messages or [],
        max_messages=services.limits.max_messages,
        tools=body.tools,
        documents=None,
        template_kwargs=body.chat_template_kwargs,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        add_special_tokens=body.add_special_tokens,
    )
    return await encode_chat(services, template, conversation)
