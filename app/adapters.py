"""The adapters that requests can name as their model. Pure; the routes change the list, app/model_card.py reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import final

from attrs import frozen

from protocol.errors import BadRequestError, NotFoundError
from protocol.lora import LoraRequest

MAX_ADAPTERS = 1024
MAX_NAME_LENGTH = 200
"""Characters."""


@frozen
class Adapter:
    lora: LoraRequest
    created: int
    """Unix time in seconds: when a client had it loaded; else when its directory was changed last."""
    base_model_name: str | None = None
    """What to call the model that it was made for; None: as that is served here."""

    @property
    def name(self) -> str:
        return self.lora.name


@final
class Adapters:
    """By name, in the order in which they came."""

    def __init__(self, adapters: Iterable[Adapter] = ()) -> None:
        self._adapters = {adapter.name: adapter for adapter in adapters}

    def __iter__(self) -> Iterator[Adapter]:
        return iter(list(self._adapters.values()))

    def find(self, name: str) -> Adapter | None:
        return self._adapters.get(name)

    def check_new(self, name: str, taken: Iterable[str], *, replaces: bool) -> None:
        """Raises BadRequestError for a name that no adapter may get: `taken` are the model's own. One that an adapter
        has may be given again only if that is to be replaced."""
        check_name(name, taken)
        if name in self._adapters:
            if not replaces:
                raise BadRequestError(
                    f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                    "'load_inplace' to True.",
                    param="lora_name",
                )
        elif len(self._adapters) >= MAX_ADAPTERS:
            raise BadRequestError(
                f"{len(self._adapters)} adapters are loaded, the most that are taken; unload one first",
                param="lora_name",
            )

    def put(self, adapter: Adapter) -> Adapter | None:
        """Add it, or put it in the place of the one with its name, which is returned."""
        before = self._adapters.get(adapter.name)
        self._adapters[adapter.name] = adapter
        return before

    def remove(self, name: str, lora_id: int | None = None) -> Adapter:
        """Raises NotFoundError for a name that no adapter has, or if the one that has it is another than `lora_id`."""
        adapter = self._adapters.get(name)
        if adapter is None or lora_id not in (None, adapter.lora.lora_id):
            raise NotFoundError(f"The lora adapter '{name[:MAX_NAME_LENGTH]}' cannot be found.", param="lora_name")
        return self._adapters.pop(name)

    def discard(self, name: str) -> None:
        """If it is there."""
        self._adapters.pop(name, None)


def check_name(name: str, taken: Iterable[str]) -> None:
    """Raises BadRequestError for a name that is empty, too long, not printable, or one of `taken`."""
    if not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable():
        raise BadRequestError(
            f"An adapter's name must have 1 to {MAX_NAME_LENGTH} printable characters; this one has {len(name)}",
            param="lora_name",
        )
    if name in taken:
        raise BadRequestError(f"'{name}' is the name of the served model, so no adapter can have it", param="lora_name")
