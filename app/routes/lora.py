"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter: vLLM's routes, open only where the operator says so."""

from __future__ import annotations

import logging

import msgspec
import trio
from quart import Blueprint, Response, request

from app.adapters import Adapter
from app.body import read_body
from app.schemas.lora import LoadLoraAdapterRequest, UnloadLoraAdapterRequest
from app.services import Services
from protocol.errors import BadRequestError, DeadlineError, NotFoundError, OperationFailedError, TrillmError
from protocol.lora import LoraId, LoraRequest
from protocol.operations import AddLora, RemoveLora, UtilityOperation

_LOAD = msgspec.json.Decoder(LoadLoraAdapterRequest)
_UNLOAD = msgspec.json.Decoder(UnloadLoraAdapterRequest)

READING_SECONDS = 100.0
MAX_READERS = 4
"""Threads that read files for clients; one that waits for a disk that does not answer stays."""

logger = logging.getLogger("trillm.http")


def lora_routes(services: Services) -> Blueprint:
    routes = Blueprint("lora", __name__)
    adapters, policy = services.model.adapters, services.adapter_policy
    one_at_a_time = trio.Lock()
    readers = trio.CapacityLimiter(MAX_READERS)

    async def find(name: str, path: str) -> LoraRequest:
        """Raises what `AdapterPolicy.find` does, and DeadlineError for a disk that does not answer."""
        try:
            with trio.fail_after(READING_SECONDS):
                return await trio.to_thread.run_sync(policy.find, name, path, abandon_on_cancel=True, limiter=readers)
        except trio.TooSlowError:
            raise DeadlineError(
                f"The files at lora_path could not be read within {READING_SECONDS:g} s", param="lora_path"
            ) from None

    async def read_by_engines(operation: UtilityOperation) -> None:
        """Raises BadRequestError for an adapter that the engines cannot compute with, else as `operate` does."""
        try:
            await services.engine.operate(operation)
        except OperationFailedError as error:
            raise BadRequestError(error.message, param="lora_path") from error

    async def give_up(lora_id: LoraId) -> None:
        """Engines that cannot be told have lost it anyway, or let others have its place."""
        try:
            await services.engine.operate(RemoveLora(lora_id))
        except TrillmError as error:
            logger.warning("an unloaded adapter may stay in memory until its place is needed: %s", error.message)

    @routes.post("/v1/load_lora_adapter")
    async def load_lora_adapter() -> Response:
        refuse_unless_allowed(services)
        body = await read_body(request, _LOAD, services.limits, services.drain)
        async with one_at_a_time:
            adapters.check_new(body.lora_name, services.model.served_names, replaces=body.load_inplace)
            lora = await find(body.lora_name, body.lora_path)
            await read_by_engines(AddLora(lora))
            adapter = Adapter(lora, int(services.clock()))
            before = adapters.put(adapter)
            await services.peers.adapter_came(adapter)
            if before is not None and before.lora.lora_id != lora.lora_id:
                await give_up(before.lora.lora_id)
        logger.info("adapter %r was loaded from %r", lora.name, lora.path)
        return _success(f"Success: LoRA adapter '{lora.name}' added successfully.")

    @routes.post("/v1/unload_lora_adapter")
    async def unload_lora_adapter() -> Response:
        refuse_unless_allowed(services)
        body = await read_body(request, _UNLOAD, services.limits, services.drain)
        async with one_at_a_time:
            removed = adapters.remove(body.lora_name, body.lora_int_id)
            await services.peers.adapter_went(removed.name)
            await give_up(removed.lora.lora_id)
        logger.info("adapter %r was unloaded", removed.name)
        return _success(f"Success: LoRA adapter '{removed.name}' removed successfully.")

    return routes


def refuse_unless_allowed(services: Services) -> None:
    """Raises NotFoundError that says which flag it takes."""
    policy = services.adapter_policy
    flag = "--enable-lora" if not policy.is_enabled else "--allow-runtime-lora-updating"
    if not (policy.is_enabled and policy.allows_updates):
        raise NotFoundError(f"This server loads and unloads no adapters: it was started without {flag}")


def _success(text: str) -> Response:
    return Response(text, content_type="text/plain; charset=utf-8")
