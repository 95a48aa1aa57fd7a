"""Builds the HTTP application from its services. The only place that knows every route.

`app/serving.py` calls create_app with the real services, tests with a fake engine.
"""

from __future__ import annotations

from quart import Response, g, request
from quart_trio import QuartTrio

from app.access_log import AccessMiddleware, access_of, route_name
from app.auth import AuthenticationMiddleware, LoopbackMiddleware
from app.connection import Connection
from app.cors import CorsMiddleware
from app.failures import register_failures
from app.grammar import RequestGrammars
from app.messages_error import REQUEST_ID, is_messages_path
from app.request_label import HEADER
from app.routes.admin import admin_routes
from app.routes.chat import chat_routes
from app.routes.completions import completion_routes
from app.routes.docs import docs_routes
from app.routes.embeddings import embedding_routes
from app.routes.lora import lora_routes
from app.routes.messages import message_routes
from app.routes.models import model_routes
from app.routes.ops import ops_routes
from app.routes.responses import response_routes
from app.routes.stored_responses import stored_response_routes
from app.routes.tokens import token_routes
from app.services import Services


def create_app(services: Services) -> QuartTrio:
    """An ASGI application for hypercorn's trio worker. Starts nothing: the engines are the caller's."""
    app = QuartTrio(__name__, static_folder=None)
    app.asgi_http_class = Connection
    app.url_map.merge_slashes = False  # one spelling per route: nothing is redirected
    app.config["MAX_CONTENT_LENGTH"] = services.limits.max_body_bytes
    app.config["BODY_TIMEOUT"] = services.limits.body_seconds
    app.config["RESPONSE_TIMEOUT"] = None  # Quart would end long streams without a word
    _label_requests(app)
    register_failures(app)
    grammars = RequestGrammars(services.engine, services.limits)
    for blueprint in (
        chat_routes(services, grammars),
        completion_routes(services, grammars),
        message_routes(services, grammars),
        response_routes(services, grammars),
        embedding_routes(services),
        model_routes(services),
        lora_routes(services),
        stored_response_routes(services),
        token_routes(services),
        ops_routes(services),
        admin_routes(services),
        docs_routes(services),
    ):
        app.register_blueprint(blueprint)
    if services.api_keys:
        app.asgi_app = AuthenticationMiddleware(app.asgi_app, services.api_keys)
    else:
        app.asgi_app = LoopbackMiddleware(app.asgi_app)
    app.asgi_app = CorsMiddleware(app.asgi_app, services.cors, has_keys=bool(services.api_keys))
    app.asgi_app = AccessMiddleware(app.asgi_app, services.metrics.http, logs=services.logs_access)
    return app


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
