"""POST /v1/chat/completions."""

from __future__ import annotations

import msgspec
from quart import Blueprint, Response, request

from app.body import read_body
from app.chat import prepare_chat
from app.chat_writer import ChatWriter
from app.grammar import RequestGrammars
from app.header_fields import with_headers
from app.respond import respond
from app.schemas.chat import ChatRequest
from app.services import Services
from app.sparse_stream import checked_interval, with_interval

_DECODER = msgspec.json.Decoder(ChatRequest)


def chat_routes(services: Services, grammars: RequestGrammars) -> Blueprint:
    routes = Blueprint("chat", __name__)

    @routes.post("/v1/chat/completions")
    async def create_chat_completion() -> Response:
        body = with_headers(await read_body(request, _DECODER, services.limits, services.drain))
        checked_interval(body)
        chat = await prepare_chat(services, grammars, body, "chatcmpl-")
        return await respond(
            services,
            chat.prompts,
            len(chat.prompts),
            bool(body.stream),
            lambda answer: with_interval(ChatWriter(chat.head, chat.form, answer), body, services.stream_interval),
            chat.deadline,
        )

    return routes
