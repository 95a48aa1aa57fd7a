"""What probes, load balancers and Prometheus ask. None of it needs a key (see app/auth.py), and none runs a model."""

from __future__ import annotations

import msgspec
import trio
from quart import Blueprint, Response, request

from actors.handles import ActorState
from app.failures import error_response
from app.schemas.ops import LoadAnswer, VersionAnswer
from app.services import Services
from protocol.errors import UnavailableError

MEASURE_SECONDS = 1.0
"""For which a scrape waits for the disk; then it tells what was there before."""


def standing(actor: ActorState) -> dict[str, str | int | float | bool]:
    """What anybody may know of an actor."""
    return {
        "name": actor.name,
        "ready": actor.ready,
        "phase": actor.phase,
        "heartbeat_age": round(actor.heartbeat_age, 1),
        "restarts": actor.restarts,
    }


def ops_routes(services: Services) -> Blueprint:
    routes = Blueprint("ops", __name__)

    @routes.get("/health")
    async def health() -> Response:
        """200 as long as the service can still become or be ready; 503 once only a restart helps. The body says which
        engines do not serve."""
        if services.engine.alive:
            return Response(services.engine.readiness.late, content_type="text/plain; charset=utf-8")
        return error_response(UnavailableError(f"Beyond recovery: {services.engine.readiness.reason}"))

    @routes.get("/ready")
    async def ready() -> Response:
        """200 with how each actor is, and which engines do not serve, though others do; 503 with which of them is late,
        and how often that was restarted."""
        readiness = services.engine.readiness
        if readiness.ready and services.engine.alive:
            late = {"late": readiness.late} if readiness.late else {}
            body = {"ready": True, **late, "actors": list(map(standing, services.engine.actors()))}
            return Response(msgspec.json.encode(body), content_type="application/json")
        return error_response(UnavailableError(f"Not ready: {readiness.reason}"))

    @routes.route("/ping", methods=["GET", "POST"])
    async def ping() -> Response:
        return await health()

    @routes.get("/version")
    async def version() -> Response:
        return Response(msgspec.json.encode(VersionAnswer(services.version)), content_type="application/json")

    @routes.get("/metrics")
    async def metrics() -> Response:
        others = await services.peers.pages()
        if services.background.store is not None:
            with trio.move_on_after(MEASURE_SECONDS):
                await services.background.store.measure()
        page, content_type = services.metrics.render(request.headers.get("accept", ""), others)
        return Response(page, content_type=content_type)

    @routes.get("/load")
    async def load() -> Response:
        """How many answers are being given, for load balancers."""
        num_open = services.metrics.requests.num_open
        num_open += sum(other.page.num_open for other in await services.peers.pages() if other.is_live)
        body = msgspec.json.encode(LoadAnswer(num_open))
        return Response(body, content_type="application/json")

    return routes
