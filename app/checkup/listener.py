"""Who listens at the address that a server would have. Used by app/commands/check.py.

It is asked without a key: whoever it is, ours is not for it.
"""

from __future__ import annotations

from typing import TypeVar

import attrs
import httpcore2
import msgspec

from app.api_client.call_error import NoAnswerError, RefusedError, plain
from app.api_client.client import ApiClient
from app.api_client.models import ModelList
from app.api_client.place import ANY_ADDRESS, Place
from app.house import House
from app.settings import Settings

T = TypeVar("T")
SECONDS = 2.0
"""For one answer."""
MOST_NAME = 100
KEY_WANTED = (401, 403)


@attrs.frozen
class Listener:
    """One that speaks HTTP."""

    name: str
    """As "trillm 0.1.0 with SmolLM2-135M-Instruct"."""
    is_trillm: bool = False
    has_models: bool = False
    """So some of the memory that is not free is its."""


class _Version(msgspec.Struct, frozen=True):
    version: str


async def find_listener(settings: Settings, backend: httpcore2.AsyncNetworkBackend | None = None) -> Listener | None:
    """None: it speaks no HTTP. Tests bring their own `backend`."""
    host = ANY_ADDRESS.get(settings.host, settings.host)
    for scheme in ("http", "https"):
        place = Place(scheme, host, settings.port, uds=settings.uds, is_insecure=True)
        async with ApiClient(place, answer_seconds=SECONDS, backend=backend) as client:
            try:
                return await _introduced(client)
            except NoAnswerError:
                continue
    return None


async def _introduced(client: ApiClient) -> Listener:
    """Raises NoAnswerError for one that does not answer."""
    _, said = await _ask(client, "/version")
    version = _read(said, _Version)
    status, said = await _ask(client, "/house")
    if (house := _read(said, House)) is not None:
        return Listener(_named("trillm", house.version, f"with {house.model.id}"), is_trillm=True, has_models=True)
    if version is not None and status in KEY_WANTED:  # only trillm has /house
        return Listener(_named("trillm", version.version), is_trillm=True, has_models=True)
    status, said = await _ask(client, "/v1/models")
    if (models := _read(said, ModelList)) is not None and models.data:
        return Listener(_named("a server of", models.data[0].id), has_models=True)
    if status in KEY_WANTED:
        return Listener("a server of models that asks for a key", has_models=True)
    return Listener("an HTTP server")


async def _ask(client: ApiClient, path: str) -> tuple[int, bytes]:
    """The status and, if it is a good one, the body. Raises NoAnswerError."""
    try:
        return 200, await client.ask("GET", path)
    except RefusedError as error:
        return error.answered or 0, b""


def _read(said: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(said, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _named(*words: str) -> str:
    return plain(" ".join(words))[:MOST_NAME]
