"""Which transports a connector has, and opens. Used by actors/kv/peers."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Sequence

from attrs import frozen

from actors.kv.transports.nixl import Nixl, label
from actors.kv.transports.nixl_agent import NixlAgent, open_nixl
from actors.kv.transports.shm import SharedMemory
from actors.kv.transports.tcp import Tcp
from actors.kv.transports.transport import Transport
from actors.kv.transports.ucx_devices import rdma_devices, ucx_variables
from actors.kv.window import Window
from protocol.errors import StartError
from protocol.kv import KV_TRANSPORTS
from protocol.nixl_module import nixl_module
from protocol.spec import KvSpec

BETTER_THAN_OURS = "^tcp"
"""What UCX may use where nobody has asked for it: over TCP we are faster. Where that is nothing, it does not start."""

logger = logging.getLogger("trillm.kv")


@frozen
class Transports:
    readers: Sequence[Transport]
    """The best first."""
    nixl: NixlAgent | None
    """Which others may read from, too."""


def chosen(spec: KvSpec) -> Sequence[str]:
    """As they were named, or what makes sense here: NIXL where there may be a device for it. Raises StartError for a
    name that is none."""
    if unknown := [name for name in spec.transports if name not in KV_TRANSPORTS]:
        raise StartError(f"{unknown[0]!r} is no KV transport; there are {', '.join(KV_TRANSPORTS)}")
    if spec.transports:
        return list(dict.fromkeys(spec.transports))
    is_worth_it = spec.peer_host is not None and nixl_module() is not None and rdma_devices()
    return [name for name in KV_TRANSPORTS if name != "nixl" or is_worth_it]


@contextlib.asynccontextmanager
async def open_transports(spec: KvSpec, window: Window) -> AsyncIterator[Transports]:
    """Until it is left. Raises StartError for what was named and cannot be had."""
    names = chosen(spec)
    async with contextlib.AsyncExitStack() as stack:
        nixl = await _open_nixl(spec, window, stack) if "nixl" in names else None
        known: dict[str, Transport] = {"shm": SharedMemory(), "tcp": Tcp()}
        if nixl is not None:
            known["nixl"] = Nixl(nixl)
        yield Transports([known[name] for name in names if name in known], nixl)


async def _open_nixl(spec: KvSpec, window: Window, stack: contextlib.AsyncExitStack) -> NixlAgent | None:
    variables = ucx_variables(spec.peer_host)
    if not spec.transports and "UCX_TLS" not in os.environ:
        variables["UCX_TLS"] = BETTER_THAN_OURS
    try:
        nixl = await stack.enter_async_context(open_nixl(window, variables))
    except StartError as error:
        if spec.transports:
            raise
        logger.warning("KV blocks do not go by NIXL, although there are devices for it: %s", error)
        return None
    devices = variables.get("UCX_NET_DEVICES") or os.environ.get("UCX_NET_DEVICES", "all")
    logger.info("KV blocks go by %s, whose port asks for no password, at devices %s", label(), devices)
    return nixl
