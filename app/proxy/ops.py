"""What probes, load balancers and Prometheus ask the proxy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

import msgspec
import trio
from attrs import frozen
from prometheus_client.metrics_core import Metric
from quart import Blueprint, Response, request

from app.failures import error_response
from app.http_metrics import HttpMetrics
from app.metrics import of_this_process, registry_of, rendered
from app.proxy.forwarding import Forwarding
from app.proxy.upstream import Upstream
from app.proxy.upstream_client import Outgoing
from app.schemas.ops import LoadAnswer, VersionAnswer
from protocol.errors import TrillmError, UnavailableError

HEALTH_SECONDS = 2.0
MOST_HEALTH_BYTES = 2**16
"""Of an answer, which is read so that its connection can be used again."""


@final
@frozen
class ProxyCollector:
    """For a registry."""

    forwarding: Forwarding
    http: HttpMetrics

    def collect(self) -> Iterable[Metric]:
        forwarding = self.forwarding
        yield from forwarding.counts.collect((forwarding.prefill, forwarding.decode), trio.current_time())
        yield from self.http.collect()


def proxy_ops_routes(forwarding: Forwarding, http: HttpMetrics, version: str) -> Blueprint:
    """What probes, load balancers and Prometheus ask. None of it needs a key (see app/auth.py)."""
    routes = Blueprint("ops", __name__)
    registry = registry_of(ProxyCollector(forwarding, http), *of_this_process())

    @routes.get("/")
    async def introduce() -> Response:
        return Response(introduction(forwarding, version), content_type="text/plain; charset=utf-8")

    @routes.get("/health")
    @routes.get("/ready")
    @routes.route("/ping", methods=["GET", "POST"])
    async def health() -> Response:
        """200 as long as one decode server answers: it can do all that is asked for."""
        if await one_is_healthy(forwarding):
            return Response(b"", content_type="text/plain; charset=utf-8")
        return error_response(UnavailableError("Not ready: no decode server answers"))

    @routes.get("/version")
    async def tell_version() -> Response:
        return Response(msgspec.json.encode(VersionAnswer(version)), content_type="application/json")

    @routes.get("/metrics")
    async def metrics() -> Response:
        page, content_type = rendered(registry, request.headers.get("accept", ""))
        return Response(page, content_type=content_type)

    @routes.get("/load")
    async def load() -> Response:
        num_open = sum(one.num_in_flight for role in (forwarding.prefill, forwarding.decode) for one in role)
        return Response(msgspec.json.encode(LoadAnswer(num_open)), content_type="application/json")

    return routes


def introduction(forwarding: Forwarding, version: str) -> str:
    """For who looks with a browser: what this is, and where the rest is to be seen."""
    prefill, decode = (
        ", ".join(str(one.address) for one in role) or "none" for role in (forwarding.prefill, forwarding.decode)
    )
    return (
        f"This is a proxy of trillm {version}. It has no console: each server behind it has its own.\n\n"
        f"Prompts go to     {prefill}\n"
        f"Answers come from {decode}\n\n"
        "Here are the OpenAI API at /v1, /health, and how it goes at /metrics.\n"
    )


async def one_is_healthy(forwarding: Forwarding) -> bool:
    """Asks all decode servers at once."""
    found = False
    question = Outgoing("GET", "/health", [])

    async def ask(upstream: Upstream) -> None:
        nonlocal found
        try:
            async with forwarding.client.open_answer(upstream, question, counted_as="health") as answer:
                await answer.read(MOST_HEALTH_BYTES)
        except TrillmError:
            return
        if answer.status == 200:
            forwarding.client.is_well(upstream)
            found = True
            nursery.cancel_scope.cancel()

    with trio.move_on_after(HEALTH_SECONDS):
        async with trio.open_nursery() as nursery:
            for upstream in forwarding.decode:
                nursery.start_soon(ask, upstream)
    return found
