"""How a server is, at one moment: trillm's GET /house, or of another server what /health and metrics say, under vLLM's
names or, for a proxy, under ours.

Used by app/commands/status.py.
"""

from __future__ import annotations

import math

import msgspec

from app.api_client.call_error import RefusedError
from app.api_client.client import ApiClient
from app.api_client.models import ABSENT, model_names
from app.commands.status_proxy import ProxyServer, proxy_of
from app.house import House
from app.schemas.ops import VersionAnswer

RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
TOKENS, KV_USAGE = "vllm:generation_tokens_total", "vllm:kv_cache_usage_perc"


class OtherServer(msgspec.Struct, frozen=True, kw_only=True):
    """One without /house. What it does not tell is None."""

    object: str = "server"
    ready: bool
    """/health answered well, or is not there."""
    reason: str
    models: list[str]
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    """0 to 1."""
    generation_tokens: int | None = None


Reading = House | OtherServer | ProxyServer


async def read_server(client: ApiClient) -> Reading:
    """Raises NoAnswerError, and RefusedError for one that tells us nothing."""
    try:
        return await client.get("/house", House)
    except RefusedError as error:
        if error.answered not in ABSENT:
            raise
    reason = ""
    try:
        await client.ask("GET", "/health")
    except RefusedError as error:
        reason = "" if error.answered in ABSENT else error.message
    models = [] if reason else await model_names(client)
    server = OtherServer(ready=not reason, reason=reason, models=models)
    try:
        text = await client.ask("GET", "/metrics")
    except RefusedError:
        return server
    told = text.decode(errors="replace")
    proxy = proxy_of(told, ready=server.ready, reason=reason, models=models)
    return with_figures(server, told) if proxy is None else await _with_version(proxy, client)


async def _with_version(proxy: ProxyServer, client: ApiClient) -> ProxyServer:
    try:
        return msgspec.structs.replace(proxy, version=(await client.get("/version", VersionAnswer)).version)
    except RefusedError:
        return proxy


def with_figures(server: OtherServer, text: str) -> OtherServer:
    """Those of metrics as Prometheus reads them: sums over engines, and of the KV cache's usage the mean. What is no
    metrics, and no number, has no figures."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, list[float]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if math.isfinite(sample.value):
                    found.setdefault(sample.name, []).append(sample.value)
    except ValueError:
        return server
    usage = found.get(KV_USAGE)
    return msgspec.structs.replace(
        server,
        running=_total(found.get(RUNNING)),
        waiting=_total(found.get(WAITING)),
        generation_tokens=_total(found.get(TOKENS)),
        kv_usage=sum(one / len(usage) for one in usage) if usage else None,
    )


def _total(values: list[float] | None) -> int | None:
    return None if values is None or not math.isfinite(total := sum(values)) else int(total)
