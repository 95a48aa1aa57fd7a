"""The proxy's routes: answers go by two servers, what else is asked of a model goes to a decode server as it is."""

from __future__ import annotations

import re

from quart import Blueprint, Response, request

from app.access_log import access_of
from app.body import read_body
from app.connection import request_stack
from app.drain import Drain
from app.limits import Limits
from app.proxy.forwarding import Forwarding
from app.proxy.handover import CHAT, COMPLETIONS, FIELDS, Handover
from app.proxy.passage import passage_of
from app.proxy.passed_body import passed_response
from app.proxy.passed_headers import passed_up, with_trace
from app.proxy.upstream_client import Outgoing
from app.tracing.request_trace import current_trace
from protocol.errors import NotFoundError

PATH = re.compile(r"(/[A-Za-z0-9_~:@!$&'()*+,;=-][A-Za-z0-9._~:@!$&'()*+,;=-]*)+")
"""What goes on: nothing that a server behind could read as another path. (No name begins with a dot.)"""
OTHERS = ("/tokenize", "/detokenize", "/pooling", "/classify", "/score", "/rerank")
"""Outside /v1, as trillm and vLLM have them."""
OF_ONE_SERVER = (
    *("/pause", "/resume", "/is_paused", "/sleep", "/wake_up", "/is_sleeping", "/reset_prefix_cache"),
    *("/abort_requests", "/start_profile", "/stop_profile", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
    *("/collective_rpc", "/reset_mm_cache", "/server_info", "/scale_elastic_ep"),
)


def proxy_routes(forwarding: Forwarding, limits: Limits, drain: Drain, upstream_key: str | None) -> Blueprint:
    """`drain`: once it is begun, nothing more is taken."""
    routes = Blueprint("proxy", __name__)

    def outgoing(body: bytes) -> Outgoing:
        query = request.query_string.decode("latin-1")
        headers = passed_up(request.scope["headers"], access_of(request).label, upstream_key)
        if (trace := current_trace.get()) is not None:
            headers = with_trace(headers, trace.context)
        return Outgoing(request.method, f"{request.path}?{query}" if query else request.path, headers, body)

    @routes.post(COMPLETIONS)
    @routes.post(CHAT)
    async def answer() -> Response:
        handover = Handover(request.path, await read_body(request, FIELDS, limits, drain))
        access = access_of(request)
        access.model = handover.model or access.model
        passage, stack = passage_of(request), request_stack(request)
        stack.callback(passage.end, forwarding.counts)
        found = await forwarding.answer(handover, outgoing(b""), stack, passage)
        return passed_response(found, access, passage)

    @routes.route("/v1/<path:rest>", methods=["GET", "POST", "DELETE"])
    async def pass_on(rest: str) -> Response:
        return await passed_on()

    async def passed_on() -> Response:
        if not PATH.fullmatch(request.path):
            raise NotFoundError("There is no such route here")

        async def received() -> bytes:
            return await request.get_data(cache=False, as_text=False, parse_form_data=False)

        body = await drain.unless_begun(received)
        passage = passage_of(request)
        found = await forwarding.pass_on(outgoing(body), request_stack(request), passage)
        return passed_response(found, access_of(request), passage)

    async def refuse() -> Response:
        raise NotFoundError(f"{request.path} is for one server, and this is a proxy in front of several: ask them")

    for path in OTHERS:
        routes.add_url_rule(path, f"pass_on_{path[1:]}", passed_on, methods=["POST"])
    for path in OF_ONE_SERVER:
        routes.add_url_rule(path, f"refuse_{path[1:].replace('/', '_')}", refuse, methods=["GET", "POST"])
    return routes
