"""GET /openapi.json and /docs. With keys set, both need one, as whatever no probe reads."""

from __future__ import annotations

import msgspec
from quart import Blueprint, Response, request

from app.docs_page import docs_page
from app.openapi import Json, openapi_document
from app.operations import HTML, JSON
from app.services import Services

_PAGE_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
"""The page needs nothing but its own style, and runs nothing."""


def docs_routes(services: Services) -> Blueprint:
    routes = Blueprint("docs", __name__)

    def document() -> Json:  # some milliseconds, for each of the few who ask
        found = openapi_document(services.version, services.limits, has_keys=bool(services.api_keys))
        root = request.scope.get("root_path", "")
        return found | {"servers": [{"url": root}]} if root else found

    @routes.get("/openapi.json")
    async def openapi() -> Response:
        return Response(msgspec.json.encode(document()), content_type=JSON)

    @routes.get("/docs")
    async def docs() -> Response:
        return Response(docs_page(document()), content_type=f"{HTML}; charset=utf-8", headers=_PAGE_HEADERS)

    return routes
