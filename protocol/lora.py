"""A LoRA adapter as requests name it: low-rank additions to the linears of the served model (Hu et al., 2021)."""

from __future__ import annotations

from typing import NewType

import msgspec

LoraId = NewType("LoraId", int)
"""What tells adapters apart inside the engines, from 1 up to 2**63 - 1: what was computed under one is never mixed with
what was computed under another. An adapter that replaces one of the same name gets another id."""

NO_LORA = LoraId(0)
"""The model alone."""


class LoraRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Travels with each request that uses the adapter, so that an engine that is started anew knows where it is."""

    name: str
    lora_id: LoraId
    path: str
    """A PEFT checkpoint directory on the engine's machine."""
