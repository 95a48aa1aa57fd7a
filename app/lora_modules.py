"""--lora-modules: each `name=path`, or JSON {"name": …, "path": …, "base_model_name": …}. Read by app/settings.py."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from app.adapters import MAX_ADAPTERS, check_name
from protocol.errors import BadRequestError


class LoraModule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An adapter that is there from the start."""

    name: str
    path: str
    base_model_name: str | None = None


def read_lora_modules(texts: Sequence[str]) -> list[LoraModule]:
    """Raises BadRequestError for what is neither form, names that no adapter may have, and two of one name."""
    modules = [_read(text) for text in texts]
    if len(modules) > MAX_ADAPTERS:
        raise BadRequestError(f"--lora-modules has {len(modules)} adapters; at most {MAX_ADAPTERS} are taken")
    names = [module.name for module in modules]
    for name in names:
        try:
            check_name(name, ())
        except BadRequestError as error:
            raise BadRequestError(f"--lora-modules: {error.message}") from error
        if names.count(name) > 1:
            raise BadRequestError(f"--lora-modules names {name} twice")
    return modules


def _read(text: str) -> LoraModule:
    if text.lstrip().startswith("{"):
        try:
            return msgspec.json.decode(text, type=LoraModule)
        except msgspec.DecodeError as error:
            raise BadRequestError(f"--lora-modules {text[:100]}: {error}") from error
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise BadRequestError(
            f"--lora-modules takes name=path, or JSON with name, path and perhaps base_model_name, not {text[:100]!r}"
        )
    return LoraModule(name, path)
