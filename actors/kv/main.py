"""The KV connector actor. Placeholder of the contract: another file's author replaces it."""

from __future__ import annotations

from actors.child import Control
from protocol.spec import KvSpec


async def run_kv_process(spec: KvSpec, control: Control) -> None:
    raise NotImplementedError
