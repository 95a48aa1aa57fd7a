"""Builds the HTTP application from its services. The only place that knows every route.

`app/service.py` calls create_app with the real services, tests with a fake engine.
"""

from __future__ import annotations

from quart_trio import QuartTrio

from app.console_files import public_paths
from app.front import bare_app, guard
from app.grammar import RequestGrammars
from app.routes.admin import admin_routes
from app.routes.chat import chat_routes
from app.routes.completions import completion_routes
from app.routes.console import console_routes
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
from app.tracing.middleware import TracingMiddleware


def create_app(services: Services) -> QuartTrio:
    """An ASGI application for hypercorn's trio worker. Starts nothing: the engines are the caller's."""
    app = bare_app(__name__, services.limits)
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
        console_routes(services),
    ):
        app.register_blueprint(blueprint)
    if services.tracing is not None:
        app.asgi_app = TracingMiddleware(app.asgi_app, services.tracing)
    public = public_paths() if services.has_console else frozenset()
    guard(app, services.api_keys, services.cors, services.metrics.http, logs=services.logs_access, public=public)
    return app
