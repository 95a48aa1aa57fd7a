"""The adapters that a runner has: no more than there may be, and each once.

Used by gpu/torch_runner and gpu/fake_runner.
"""

from __future__ import annotations

from typing import Generic, TypeVar, final

from protocol.errors import BadRequestError
from protocol.lora import LoraId

Adapter = TypeVar("Adapter")


@final
class ResidentLoras(Generic[Adapter]):
    """At most `max_loras`."""

    def __init__(self, max_loras: int) -> None:
        self._max_loras = max_loras
        self._adapters: dict[LoraId, Adapter] = {}

    def __contains__(self, lora_id: LoraId) -> bool:
        return lora_id in self._adapters

    def __getitem__(self, lora_id: LoraId) -> Adapter:
        return self._adapters[lora_id]

    @property
    def ids(self) -> list[LoraId]:
        """In the order in which they came."""
        return list(self._adapters)

    def add(self, lora_id: LoraId, adapter: Adapter) -> bool:
        """False if it is there already. Raises BadRequestError if there is no room."""
        if lora_id in self._adapters:
            return False
        if len(self._adapters) >= self._max_loras:
            raise BadRequestError(f"the engine has no room for one adapter more than {self._max_loras} (--max-loras)")
        self._adapters[lora_id] = adapter
        return True

    def remove(self, lora_id: LoraId) -> Adapter | None:
        """The adapter, or None if it was not there."""
        return self._adapters.pop(lora_id, None)
