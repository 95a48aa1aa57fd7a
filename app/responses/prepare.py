"""A request of the Responses API to a plan: what is checked, what the model will read, and how the response begins.

Everything that can be refused is refused here, before anything is told. Used by app/routes/responses.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import msgspec
from quart import has_request_context

from app.chat import PreparedChat, encode_request, prepare_chat
from app.deadline import deadline_of, within
from app.grammar import RequestGrammars
from app.header_fields import with_headers
from app.responses.builtin_tools import as_server
from app.responses.chat_fields import bounded, chat_request, check_tool_types, renamed
from app.responses.history import chat_messages, num_droppable, without_orphans
from app.responses.input_items import check_ids, input_items
from app.responses.plan import Plan
from app.responses.request_checks import check_request
from app.responses.result_room import TOO_LONG
from app.responses.told_request import told_response
from app.responses.tool_box import ToolBox
from app.responses.tool_choice import later_choice
from app.responses.tool_names import NameOf, shown_name
from app.schemas.chat import ChatRequest
from app.schemas.responses import InputItem, ResponsesRequest
from app.services import Services
from app.sparse_stream import checked_interval
from app.tool_namespace import ToolNamespace
from protocol.errors import BadRequestError

ID_PREFIX = "resp_"


async def prepare_response(services: Services, grammars: RequestGrammars, body: ResponsesRequest) -> Plan:
    """Raises BadRequestError in the words of this API, NotFoundError, UnavailableError, DeadlineError."""
    check_request(body, services.limits)
    _check_is_kept(body, services)
    deadline = deadline_of(body.timeout, services.limits)
    with within(deadline):
        plan = await _prepared(services, grammars, body)
    # Its time runs since its body is here, not since its tools are listed.
    return attrs.evolve(plan, chat=attrs.evolve(plan.chat, deadline=deadline))


def _check_is_kept(body: ResponsesRequest, services: Services) -> None:
    keeps = services.response_keeper.keeps
    if body.background and not (keeps and body.store is not False):
        raise BadRequestError(
            "background needs store: a response that nobody waits for has to be kept"
            + ("" if keeps else ", and this server keeps none"),
            param="background",
        )


async def _prepared(services: Services, grammars: RequestGrammars, body: ResponsesRequest) -> Plan:
    keeper = services.response_keeper
    new = input_items(body.input, services.limits)
    earlier = [] if body.previous_response_id is None else await keeper.history(body.previous_response_id)
    check_ids(new, earlier)
    items = [*earlier, *new]
    box = await _opened_box(services, body, items)
    try:
        asked = chat_request(body, chat_messages(body.instructions, items, _name_of(box)), box)
        checked_interval(asked)
        if has_request_context():
            asked = with_headers(asked)
        if body.truncation == "auto":
            items, asked = await _fitting(services, body, items, asked, box)
        chat = await prepare_chat(services, grammars, asked, ID_PREFIX, _namespaces(box))
        chat = bounded(chat, body.max_output_tokens)
    except BadRequestError as error:
        raise renamed(error) from error
    stores = keeper.keeps and body.store is not False
    return Plan(body, told_response(body, chat, stores=stores), new, items, asked, chat, box)


def _name_of(box: ToolBox | None) -> NameOf:
    return shown_name if box is None else box.name_of


def _namespaces(box: ToolBox | None) -> Sequence[ToolNamespace]:
    return () if box is None else box.namespaces


async def _opened_box(services: Services, body: ResponsesRequest, items: Sequence[InputItem]) -> ToolBox | None:
    tools = body.tools or ()
    check_tool_types(tools, services.limits)
    has_servers = any(as_server(tool).type == "mcp" for tool in tools)
    if not has_servers and all(item.type != "mcp_approval_response" for item in items):
        return None
    return await services.tool_servers.open(tools, items)


async def _fitting(
    services: Services, body: ResponsesRequest, items: list[InputItem], asked: ChatRequest, box: ToolBox | None
) -> tuple[list[InputItem], ChatRequest]:
    """truncation "auto": without as many of the oldest items as have to go, but for the last one, and the call that it
    answers. That may still be too long, which who prepares the chat refuses."""
    context = services.facts().max_model_len
    room = context - min(body.max_output_tokens or context // 4, context // 2)

    def cut(num_dropped: int) -> tuple[list[InputItem], ChatRequest]:
        kept = without_orphans(items[num_dropped:])
        return kept, msgspec.structs.replace(asked, messages=chat_messages(body.instructions, kept, _name_of(box)))

    async def fits(request: ChatRequest) -> bool:
        try:
            return len(await encode_request(services, request, _namespaces(box))) <= room
        except BadRequestError as error:
            if error.code == TOO_LONG:
                return False
            raise

    most = num_droppable(items)
    if most == 0 or await fits(asked):
        return items, asked
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if await fits(cut(middle)[1]):
            high = middle
        else:
            low = middle + 1
    return cut(low)


async def next_chat(
    services: Services,
    grammars: RequestGrammars,
    plan: Plan,
    items: Sequence[InputItem],
    *,
    offers_servers: bool,
    num_written: int,
) -> PreparedChat:
    """A later turn's, after `items` and `num_written` tokens, of which the request's bounds are of all turns together.
    What had to be called has been called; without `offers_servers` the model is shown no more tools that the server
    runs. Raises BadRequestError in the words of this API."""
    asked = plan.chat_request
    tools = asked.tools
    if tools and plan.box is not None and not offers_servers:
        tools = [tool for tool in tools if plan.box.find(tool.function.name) is None] or None
    request = msgspec.structs.replace(
        asked,
        messages=chat_messages(plan.body.instructions, items, _name_of(plan.box)),
        tools=tools,
        tool_choice=later_choice(plan.body.tool_choice, asked.tool_choice, tools),
        min_tokens=_left(asked.min_tokens, num_written),
    )
    try:
        if plan.body.truncation == "auto":
            _, request = await _fitting(services, plan.body, list(items), request, plan.box)
        most = _left(plan.body.max_output_tokens, num_written)
        return bounded(await prepare_chat(services, grammars, request, ID_PREFIX, _namespaces(plan.box)), most)
    except BadRequestError as error:
        raise renamed(error) from error


def _left(bound: int | None, num_written: int) -> int | None:
    return None if bound is None else max(0, bound - num_written)
