"""GET /house, and the console that draws it: a page at / with its files below /console/.

The page and its files are public, as a browser that opens them sends no key; all that the page then asks for needs one.
With --no-console there is no page; /house is there all the same.
"""

from __future__ import annotations

import msgspec
from quart import Blueprint, Response, request

from app.console_files import INDEX, ConsoleFile, console_files
from app.house_reader import HouseReader
from app.operations import JSON
from app.services import Services
from protocol.errors import NotFoundError

_CSP = (
    "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"  # no text becomes markup, whoever's slip it were
)
_FILE_HEADERS = {
    "Cache-Control": "no-cache",  # kept, and asked about each time: a new version is seen at once
    "Content-Security-Policy": _CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def console_routes(services: Services) -> Blueprint:
    routes = Blueprint("console", __name__)
    reader = HouseReader(services)

    @routes.get("/house")
    async def house() -> Response:
        """As well while nothing is ready: that is when people look."""
        body = msgspec.json.encode(await reader.read())
        return Response(body, content_type=JSON, headers={"Cache-Control": "no-store"})

    if services.has_console:
        _add_files(routes)
    return routes


def _add_files(routes: Blueprint) -> None:
    found = console_files()

    @routes.get("/")
    async def page() -> Response:
        return _answer(found[INDEX])

    @routes.get("/console/<path:name>")
    async def file(name: str) -> Response:
        """No path from the wire reaches the file system: the name is looked for among those that were read."""
        if name not in found or name == INDEX:
            raise NotFoundError(f"The console has no file {name[:100]!r}")
        return _answer(found[name])


def _answer(file: ConsoleFile) -> Response:
    headers = _FILE_HEADERS | {"ETag": file.etag}
    if request.if_none_match.contains_weak(file.etag.strip('"')):
        return Response(b"", status=304, headers=headers)
    return Response(file.data, content_type=file.content_type, headers=headers)
