"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API, for its clients and for Claude Code."""

from __future__ import annotations

import msgspec
from quart import Blueprint, Response, request

from app.answer import Answer
from app.body import read_body
from app.calls import check_tools
from app.chat import encode_request, prepare_chat
from app.ending import MESSAGES
from app.grammar import RequestGrammars
from app.header_fields import with_headers
from app.messages_error import PATH
from app.messages_request import chat_request, counted_request
from app.messages_writer import MessagesWriter
from app.respond import Writer, respond
from app.schemas.messages import CountTokensAnswer, CountTokensRequest, MessagesRequest
from app.services import Services
from app.sparse_stream import with_interval

_MESSAGES = msgspec.json.Decoder(MessagesRequest)
_COUNT = msgspec.json.Decoder(CountTokensRequest)


def message_routes(services: Services, grammars: RequestGrammars) -> Blueprint:
    routes = Blueprint("messages", __name__)

    @routes.post(PATH)
    async def create_message() -> Response:
        body = await read_body(request, _MESSAGES, services.limits, services.drain)
        as_chat = with_headers(chat_request(body, services.limits))
        chat = await prepare_chat(services, grammars, as_chat, "msg_")
        tells_thoughts = body.thinking is None or body.thinking.display != "omitted"

        def write(answer: Answer) -> Writer:
            writer = MessagesWriter(chat.head, chat.reader(), answer, tells_thoughts=tells_thoughts)
            return with_interval(writer, as_chat, services.stream_interval)

        return await respond(
            services, chat.prompts, len(chat.prompts), bool(body.stream), write, chat.deadline, MESSAGES
        )

    @routes.post(f"{PATH}/count_tokens")
    async def count_message_tokens() -> Response:
        body = await read_body(request, _COUNT, services.limits, services.drain)
        chat = counted_request(body, services.limits)
        services.model.name(chat.model)
        check_tools(chat.tools, services.limits.max_tools)
        answer = CountTokensAnswer(len(await encode_request(services, chat)))
        return Response(msgspec.json.encode(answer), content_type="application/json")

    return routes
