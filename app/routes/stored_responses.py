"""GET, DELETE and cancel of /v1/responses/{response_id}, and what it was an answer to."""

from __future__ import annotations

import msgspec
import trio
from quart import Blueprint, Response, request

from app.responses.feed import Feed
from app.responses.listed_items import DEFAULT_LIMIT, MAX_LIMIT, Page
from app.responses.missing import check_id, not_found
from app.responses.replay import Replay
from app.responses.store import ResponseStore
from app.responses.stored import StoredResponse
from app.responses.stream import stream_events
from app.schemas.stored_responses import DeletedResponse
from app.services import Services
from protocol.errors import BadRequestError, NotFoundError

PATH = "/v1/responses/<response_id>"
CANCEL_SECONDS = 10.0
"""How long a cancelled response may take to end before it is told as it is."""
MAX_NUMBER = 2**53

_ENCODER = msgspec.json.Encoder()
_ORDERS = ("asc", "desc")


def stored_response_routes(services: Services) -> Blueprint:
    routes = Blueprint("stored_responses", __name__)
    background = services.background
    store = background.store
    if store is None:
        _refuse_all(routes)
        return routes

    @routes.get(PATH)
    async def retrieve_response(response_id: str) -> Response:
        is_streamed = _flag("stream")
        after = _number("starting_after", -1, 0, MAX_NUMBER)
        _flag("include_obfuscation")
        feed = background.feed(response_id)
        if not is_streamed:
            return _json(await _current(store, response_id, feed))
        if feed is None:
            _check_has_events(await store.get(response_id))
        return stream_events(Replay(store, response_id, after, feed).next, services.keep_alive_seconds)

    @routes.delete(PATH)
    async def delete_response(response_id: str) -> Response:
        check_id(response_id)
        await store.delete(response_id)
        background.delete(response_id)
        return _json(_ENCODER.encode(DeletedResponse(id=response_id)))

    @routes.post(f"{PATH}/cancel")
    async def cancel_response(response_id: str) -> Response:
        feed = background.feed(response_id)
        if feed is None:
            row = await store.get(response_id)
            _check_is_background(row)
            if row.is_under_way:
                await _cancel_elsewhere(store, response_id)
            return _json(await _current(store, response_id, None))
        background.cancel(response_id)
        with trio.move_on_after(CANCEL_SECONDS):
            await feed.wait_ended()
        return _json(_ENCODER.encode(feed.log.response))

    @routes.get(f"{PATH}/input_items")
    async def list_input_items(response_id: str) -> Response:
        limit = _number("limit", DEFAULT_LIMIT, 1, MAX_LIMIT)
        order = request.args.get("order", "desc")
        if order not in _ORDERS:
            raise BadRequestError(f"order must be asc or desc, not {order[:80]!r}", param="order")
        page = Page(limit, is_ascending=order == "asc", after=request.args.get("after"))
        return _json(await store.input_of(response_id, page))

    return routes


def _refuse_all(routes: Blueprint) -> None:
    """Without a store there is nothing to be found."""

    async def refuse(response_id: str) -> Response:
        raise NotFoundError(
            f"{not_found(response_id).message}: this server keeps no responses (--no-responses-store)",
            param="response_id",
        )

    routes.get(PATH)(refuse)
    routes.delete(PATH)(refuse)
    routes.post(f"{PATH}/cancel")(refuse)
    routes.get(f"{PATH}/input_items")(refuse)


async def _current(store: ResponseStore, response_id: str, feed: Feed | None) -> bytes:
    if feed is not None:
        return _ENCODER.encode(feed.log.response)
    return (await store.get(response_id)).response


async def _cancel_elsewhere(store: ResponseStore, response_id: str) -> None:
    """Another server that shares the store has it."""
    await store.ask_to_cancel(response_id)
    with trio.move_on_after(CANCEL_SECONDS):
        await Replay(store, response_id, MAX_NUMBER, None).next()


def _check_has_events(row: StoredResponse) -> None:
    if not row.is_background:
        raise BadRequestError(
            "stream: only responses that were made with background=true can be streamed later", param="stream"
        )


def _check_is_background(row: StoredResponse) -> None:
    if not row.is_background:
        raise BadRequestError("Only responses that were made with background=true can be cancelled")


def _flag(name: str) -> bool:
    given = request.args.get(name, "false").lower()
    if given not in ("true", "false", "1", "0"):
        raise BadRequestError(f"{name} must be true or false, not {given[:80]!r}", param=name)
    return given in ("true", "1")


def _number(name: str, default: int, lowest: int, highest: int) -> int:
    given = request.args.get(name)
    if given is None:
        return default
    if not (given.isascii() and given.isdecimal() and len(given) <= 20 and lowest <= int(given) <= highest):
        raise BadRequestError(f"{name} must be a number from {lowest} to {highest}, not {given[:80]!r}", param=name)
    return int(given)


def _json(body: bytes) -> Response:
    return Response(body, content_type="application/json")
