"""GET /v1/models."""

from __future__ import annotations

from typing import Literal

import msgspec


class Model(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["trillm"] = "trillm"
    root: str
    """Of an adapter: the directory on the server that it was loaded from."""
    parent: str | None = None
    """Of an adapter: the model that it is for."""
    max_model_len: int | None
    """None until the engine has told it."""


class ModelList(msgspec.Struct, frozen=True):
    data: list[Model]
    object: Literal["list"] = "list"
