"""`trillm serve` from its settings to its exit status. An engine takes longest to start, so the actors are started at
once; all that HTTP needs is imported and read while they load.

Exit statuses, which a service manager goes by:
    0   it was told to stop (SIGTERM, SIGINT) and did, also when answers were cut off at --shutdown-timeout
    1   it could not start or could not go on, and has said why in one sentence: starting it again may help
    2   a flag that does not exist or cannot be read, from the command's parser
    9 or 15 as a signal: it was killed; its actors leave by themselves within a second
"""

from __future__ import annotations

import gc
import logging
import math
import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from app.api_identity import ALONE, ApiIdentity
from app.checkpoints.inspect import Description, describe
from app.checkpoints.parallel_sizes import check_sizes
from app.checkpoints.resolve import Checkpoint
from app.checkpoints.weights import check_weights
from app.engine_client import ActorEngineClient
from app.engine_peers import EnginePeers
from app.follow_start import follow_start
from app.headless import serve_headless
from app.kv_start import check_connectors
from app.listening import ListeningConfig, address, hypercorn_config, open_sockets
from app.notify import open_notifier
from app.roles import Roles
from app.settings import Settings
from app.start_screen import Start
from app.startup import Startup
from app.tracing.start import check_tracing
from protocol.errors import CheckpointError

if TYPE_CHECKING:
    from app.peers import Peers
    from app.service import Service

logger = logging.getLogger("trillm")


async def serve(
    settings: Settings, checkpoint: Checkpoint, manager: Mapping[str, str], start: Start | None = None
) -> int:
    """Serve until a signal or a failure; the exit status: 0 after a signal, 1 when the service could not go on.
    `manager` is what the service manager said in the environment (app/notify.py), `start` what was done before, and who
    tells of the rest.

    Raises CheckpointError for a checkpoint that cannot be served, and StartError when an address cannot be bound or KV
    connectors cannot have what they need, all before any process is started (but for a chat template, which is read
    later).
    """
    start = start or Start()
    description = checked(settings, checkpoint)
    if settings.node_rank > 0:
        return await serve_headless(settings, checkpoint, manager)
    check_tracing(settings.otlp_traces_endpoint)
    config = hypercorn_config(settings)
    if settings.api_server_count > 1:
        return await serve_by_several(settings, checkpoint, config, manager, start)
    client = engine_client(settings)
    with (
        open_sockets(settings, config, manager) as sockets,
        open_notifier(manager) as notifier,
        trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals,
    ):
        start.screen.starting((settings.served_model_name or (checkpoint.name,))[0], address(sockets))
        await check_connectors(settings)
        start.startup.awaited = f"loading what HTTP {'and --tool-server need' if settings.tool_server else 'needs'}"
        async with trio.open_nursery() as actors:
            actors.start_soon(client.run_actors, settings.house(checkpoint.directory, checkpoint.draft))
            actors.start_soon(follow_start, start.startup, client.actors, start.screen.logs)
            load = partial(load_service, settings, checkpoint, description, client, startup=start.startup)
            service = await trio.to_thread.run_sync(load)
            from app.serving import run_until_stopped

            await run_until_stopped(signals, service, config, sockets, start, notifier)
            actors.cancel_scope.cancel()
    if client.failure is not None:
        return 1
    logger.info("stopped")
    return 0


async def serve_by_several(
    settings: Settings, checkpoint: Checkpoint, config: ListeningConfig, manager: Mapping[str, str], start: Start
) -> int:
    """As `serve`, with --api-server-count processes that answer, of which none is this one."""
    from app.api_servers import oversee

    with (
        open_sockets(settings, config, manager) as sockets,
        open_notifier(manager) as notifier,
        trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals,
    ):
        await check_connectors(settings)
        return await oversee(settings, checkpoint, config, sockets, signals, notifier, start)


def engine_client(
    settings: Settings, identity: ApiIdentity = ALONE, peers: EnginePeers | None = None
) -> ActorEngineClient:
    """Not ready before app/serving.py has had the adapters checked, if there are any."""
    return ActorEngineClient(
        max_live_requests=settings.max_live_requests,
        max_queue_seconds=settings.max_queue_time or math.inf,
        has_prefix_cache=settings.enable_prefix_caching,
        to_check="the adapters of --lora-modules are being read" if settings.lora_modules else None,
        identity=identity,
        peers=peers,
        roles=Roles(settings.prefill_engines),
    )


def checked(settings: Settings, checkpoint: Checkpoint) -> Description:
    """What the model is. Raises CheckpointError for one that no engine could load, StartError for one that cannot be
    cut as is asked for."""
    description = describe(checkpoint.directory)
    if settings.load_format != "dummy":
        check_sizes(checkpoint.directory, settings.parallel)
        check_weights(checkpoint.directory)
    if checkpoint.draft is not None:
        check_draft(settings, description, checkpoint.draft)
    return description


def check_draft(settings: Settings, served: Description, directory: Path) -> None:
    """Raises CheckpointError for a draft model that cannot be loaded, or speaks in other tokens."""
    draft = describe(directory)
    if draft.tokenizer_size != served.tokenizer_size:
        raise CheckpointError(
            f"--speculative-config: the draft model {directory.name} has a tokeniser of {draft.tokenizer_size} tokens, "
            f"and {served.directory.name} one of {served.tokenizer_size}: they must be the same"
        )
    if settings.load_format != "dummy":
        check_weights(directory)


def load_service(
    settings: Settings,
    checkpoint: Checkpoint,
    description: Description,
    client: ActorEngineClient,
    peers: Peers | None = None,
    startup: Startup | None = None,
    started_at: float | None = None,
) -> Service:
    """In a worker thread, so that the actors are heard meanwhile. Raises CheckpointError."""
    from app.service import Service

    service = Service(settings, checkpoint, description, client, peers, startup, started_at)
    gc.freeze()  # all this stays: the collector need not look at it again
    return service
