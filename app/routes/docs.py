"""GET /openapi.json and /docs. Public: browsers send no key of their own accord, and both say what every server of this
version and these limits says."""

from __future__ import annotations

from functools import lru_cache

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

    @lru_cache(maxsize=1)  # tens of milliseconds, which anybody may ask for; the prefix is the server's own
    def made(root: str) -> tuple[bytes, str]:
        found = openapi_document(services.version, services.limits, has_keys=bool(services.api_keys))
        document: Json = found | {"servers": [{"url": root}]} if root else found
        return msgspec.json.encode(document), docs_page(document)

    def root_path() -> str:
        return str(request.scope.get("root_path", ""))

    @routes.get("/openapi.json")
    async def openapi() -> Response:
        return Response(made(root_path())[0], content_type=JSON)

    @routes.get("/docs")
    async def docs() -> Response:
        return Response(made(root_path())[1], content_type=f"{HTML}; charset=utf-8", headers=_PAGE_HEADERS)

    return routes
