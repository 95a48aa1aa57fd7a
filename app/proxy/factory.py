"""Builds the proxy's HTTP application. app/proxy/serving.py runs it; tests bring servers of their own."""

from __future__ import annotations

from importlib.metadata import version

from quart_trio import QuartTrio

from app.cors_policy import CorsPolicy
from app.drain import Drain
from app.front import bare_app, guard
from app.http_metrics import HttpMetrics
from app.proxy.counts import ProxyCounts
from app.proxy.cut_off import CutOffMiddleware
from app.proxy.forwarding import Forwarding
from app.proxy.ops import proxy_ops_routes
from app.proxy.passage import Passage, passed
from app.proxy.routes import proxy_routes
from app.proxy.settings import ProxySettings
from app.proxy.upstream_client import UpstreamClient
from app.proxy.upstreams import Upstreams
from app.tracing.middleware import TracingMiddleware
from app.tracing.start import Tracing

PUBLIC = frozenset({"/"})
"""Needs no key: it tells nothing that /metrics does not."""


def make_forwarding(settings: ProxySettings, client: UpstreamClient, counts: ProxyCounts) -> Forwarding:
    return Forwarding(
        client,
        Upstreams("prefill", settings.prefill_addresses),
        Upstreams("decode", settings.decode_addresses),
        counts,
        settings.prefill_timeout,
        settings.prefill_min_bytes,
    )


def create_proxy_app(
    settings: ProxySettings, forwarding: Forwarding, drain: Drain, tracing: Tracing | None = None
) -> QuartTrio:
    """An ASGI application for hypercorn's trio worker. `drain`: once it is begun, no more requests are taken. `tracing`
    is run by who calls this."""
    app = bare_app(__name__, settings.limits)
    http = HttpMetrics()
    app.register_blueprint(proxy_routes(forwarding, settings.limits, drain, settings.upstream_api_key))
    app.register_blueprint(proxy_ops_routes(forwarding, http, version("trillm")))
    app.asgi_app = CutOffMiddleware(app.asgi_app)
    if tracing is not None:
        app.asgi_app = TracingMiddleware(app.asgi_app, tracing, passed)
    guard(app, settings.api_key, CorsPolicy(), http, logs=not settings.disable_access_log, work=Passage, public=PUBLIC)
    return app
