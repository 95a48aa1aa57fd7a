"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

import msgspec
from quart import Blueprint, Response

from app.schemas.models import Model, ModelList
from app.services import Services

_ENCODER = msgspec.json.Encoder()


def model_routes(services: Services) -> Blueprint:
    routes = Blueprint("models", __name__)

    def model(name: str) -> Model:
        facts = services.engine.facts
        return Model(
            id=name,
            created=services.model.created,
            root=services.model.served_names[0],
            max_model_len=facts.max_model_len if facts else None,
        )

    @routes.get("/v1/models")
    async def list_models() -> Response:
        found = ModelList([model(name) for name in services.model.served_names])
        return Response(_ENCODER.encode(found), content_type="application/json")

    @routes.get("/v1/models/<path:name>")  # a path: names may have slashes, as in owner/model
    async def retrieve_model(name: str) -> Response:
        return Response(_ENCODER.encode(model(services.model.name(name))), content_type="application/json")

    return routes
