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
        facts, card = services.engine.facts, services.model
        adapter = None if name in card.served_names else card.adapters.find(name)
        return Model(
            id=name,
            created=adapter.created if adapter else card.created,
            root=adapter.lora.path if adapter else card.root,
            parent=(adapter.base_model_name or card.served_names[0]) if adapter else None,
            max_model_len=facts.max_model_len if facts else None,
        )

    @routes.get("/v1/models")
    async def list_models() -> Response:
        names = [*services.model.served_names, *(adapter.name for adapter in services.model.adapters)]
        found = ModelList([model(name) for name in names])
        return Response(_ENCODER.encode(found), content_type="application/json")

    @routes.get("/v1/models/<path:name>")  # a path: names may have slashes, as in owner/model
    async def retrieve_model(name: str) -> Response:
        return Response(_ENCODER.encode(model(services.model.name(name))), content_type="application/json")

    return routes
