"""Bodies of the routes that load and unload adapters, as vLLM's."""

from __future__ import annotations

import msgspec


class LoadLoraAdapterRequest(msgspec.Struct, frozen=True):
    lora_name: str
    """What requests call it as their `model`."""
    lora_path: str
    """A directory on the server with a PEFT checkpoint."""
    load_inplace: bool = False
    """Replace the one that has this name; requests that run with that go on with it."""


class UnloadLoraAdapterRequest(msgspec.Struct, frozen=True):
    lora_name: str
    lora_int_id: int | None = None
    """Only if that is its id."""
