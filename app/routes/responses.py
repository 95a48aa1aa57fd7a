"""POST /v1/responses: a response that is waited for, followed, or left to run in the background."""

from __future__ import annotations

import msgspec
import trio
from quart import Blueprint, Response, request

from app.access_log import Access, access_of, background_access, tell
from app.body import read_body
from app.connection import request_stack
from app.failures import error_response
from app.grammar import RequestGrammars
from app.responses.feed import Feed, FeedReader
from app.responses.plan import Plan
from app.responses.prepare import prepare_response
from app.responses.run import run_in_request, run_response
from app.responses.stream import stream_events
from app.schemas.responses import ResponsesRequest
from app.services import Services
from app.tracing.worked_for import worked_for_in_background
from protocol.errors import TrillmError

PATH = "/v1/responses"
_DECODER = msgspec.json.Decoder(ResponsesRequest)
_ENCODER = msgspec.json.Encoder()


def response_routes(services: Services, grammars: RequestGrammars) -> Blueprint:
    routes = Blueprint("responses", __name__)

    @routes.post(PATH)
    async def create_response() -> Response:
        body = await read_body(request, _DECODER, services.limits, services.drain)
        plan = await prepare_response(services, grammars, body)
        if body.background:
            return await _in_background(plan)
        return await (_streamed(plan) if body.stream else _whole(plan))

    async def _whole(plan: Plan) -> Response:
        feed, access = Feed(plan.response, keeps_events=False), access_of(request)
        failure = await run_in_request(services, grammars, plan, feed.log, access)
        if failure is None:
            return _told(feed)
        if not feed.log.has_calls:
            return error_response(failure)
        # A client that gets an error tries again: what has been called must not be called again for that.
        _note(access, failure)
        return _told(feed)

    async def _streamed(plan: Plan) -> Response:
        feed, access = Feed(plan.response), access_of(request)

        async def run(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
            failure = await run_in_request(services, grammars, plan, feed.log, access, task_status)
            _note(access, failure)

        nursery = await request_stack(request).enter_async_context(trio.open_nursery())
        await nursery.start(run)
        return stream_events(FeedReader(feed, is_only=True).next, services.keep_alive_seconds)

    async def _in_background(plan: Plan) -> Response:
        feed = Feed(plan.response)
        feed.log.begin()
        access = background_access(access_of(request))
        access.answer_id = feed.log.id

        async def work() -> None:
            with worked_for_in_background(access):
                failure = await run_response(services, grammars, plan, feed.log, access)
                _note(access, failure)

        def on_end() -> None:
            ended = feed.log.response
            access.is_cancelled = ended.status == "cancelled"
            if access.failure is None and ended.error is not None:
                access.failure = ended.error.code
            if services.logs_access:
                tell(access)

        await services.background.start(feed, plan.input_items, work, on_end)
        if plan.body.stream:
            return stream_events(FeedReader(feed).next, services.keep_alive_seconds)
        return _told(feed)

    return routes


def _note(access: Access, failure: TrillmError | None) -> None:
    """What a response has failed with, if it has, for the access log: its status tells nothing of it."""
    if failure is not None:
        access.failure = failure.code or str(failure.status)


def _told(feed: Feed) -> Response:
    return Response(_ENCODER.encode(feed.log.response), content_type="application/json")
