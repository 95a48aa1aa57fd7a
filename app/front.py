"""What every HTTP application here has around its routes: bounds, labels, errors as JSON, the door and the access log.

Used by app/factory.py and app/proxy/factory.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quart import Response, g, request
from quart_trio import QuartTrio

from app.access_log import AccessMiddleware, access_of, route_name
from app.auth import AuthenticationMiddleware, LoopbackMiddleware
from app.connection import Connection
from app.cors import CorsMiddleware
from app.cors_policy import CorsPolicy
from app.failures import register_failures
from app.http_metrics import HttpMetrics
from app.limits import Limits
from app.messages_error import REQUEST_ID, is_messages_path
from app.no_websockets import NoWebsocketsMiddleware
from app.request_label import HEADER


def bare_app(name: str, limits: Limits) -> QuartTrio:
    """Without routes. `name`: the module of whoever adds them."""
    app = QuartTrio(name, static_folder=None)
    app.asgi_http_class = Connection
    app.url_map.merge_slashes = False  # one spelling per route: nothing is redirected
    app.config["MAX_CONTENT_LENGTH"] = limits.max_body_bytes
    app.config["BODY_TIMEOUT"] = limits.body_seconds
    app.config["RESPONSE_TIMEOUT"] = None  # Quart would end long streams without a word
    _label_requests(app)
    register_failures(app)
    return app


def guard(
    app: QuartTrio,
    api_keys: Sequence[str],
    cors: CorsPolicy,
    metrics: HttpMetrics,
    *,
    logs: bool,
    work: Callable[[], object] | None = None,
    public: frozenset[str] = frozenset(),
) -> None:
    """Nobody reaches the application but by what is put around it here. Without keys it is there for this machine.
    `logs` and `work` are AccessMiddleware's, `public` is AuthenticationMiddleware's."""
    app.asgi_app = NoWebsocketsMiddleware(app.asgi_app)
    if api_keys:
        app.asgi_app = AuthenticationMiddleware(app.asgi_app, api_keys, public)
    else:
        app.asgi_app = LoopbackMiddleware(app.asgi_app)
    app.asgi_app = CorsMiddleware(app.asgi_app, cors, has_keys=bool(api_keys))
    app.asgi_app = AccessMiddleware(app.asgi_app, metrics, logs=logs, work=work)


def _label_requests(app: QuartTrio) -> None:
    """A client's X-Request-Id is a label for logs and comes back; nothing inside the server goes by it."""

    async def label() -> None:
        access = access_of(request)
        g.request_id = access.label
        if request.url_rule is not None:
            access.handler = route_name(request.url_rule.rule)

    async def echo(response: Response) -> Response:
        response.headers[HEADER] = g.get("request_id", "-")
        if is_messages_path(request.path):
            response.headers[REQUEST_ID] = response.headers[HEADER]
        return response

    app.before_request(label)
    app.after_request(echo)
