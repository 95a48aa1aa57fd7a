"""Which models a server has. Used by the commands, to choose one if none is named."""

from __future__ import annotations

import msgspec

from app.api_client.call_error import RefusedError
from app.api_client.client import ApiClient
from protocol.errors import NotFoundError

MOST_NAMES = 20
ABSENT = (404, 405)
"""What a server answers that does not have a route."""


class Model(msgspec.Struct, frozen=True):
    id: str


class ModelList(msgspec.Struct, frozen=True):
    """What /v1/models answers."""

    data: list[Model]


async def model_names(client: ApiClient) -> list[str]:
    """In the server's order. Raises NoAnswerError and RefusedError."""
    return [model.id for model in (await client.get("/v1/models", ModelList)).data]


async def chosen_model(client: ApiClient, wanted: str | None) -> str:
    """The wanted one, also of a server that does not tell which it has; or the server's first.

    Raises NotFoundError with what there is, and as `model_names`.
    """
    try:
        names = await model_names(client)
    except RefusedError as error:
        if wanted is None or error.answered not in ABSENT:
            raise
        return wanted
    if wanted is not None and names and wanted not in names:
        there = ", ".join(names[:MOST_NAMES]) + (", …" if len(names) > MOST_NAMES else "")
        raise NotFoundError(f"{client.place} has no model {wanted!r}; it has {there}")
    if wanted is not None:
        return wanted
    if not names:
        raise NotFoundError(f"{client.place} has no model")
    return names[0]
