"""What one of several API servers does: it serves on inherited sockets as a lone server would, over engines that the
supervisor tells it of (actors/api), with settings and a checkpoint that the main process has checked.

Loaded by app/api_process.py. Signals are the main process's; it is told of them.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable

import trio
from hypercorn.config import Sockets

from actors.handles import ApiHouse
from app.api_identity import ApiIdentity
from app.api_serving import ApiServing, read
from app.checkpoints.inspect import describe
from app.engine_client import ActorEngineClient
from app.follow_start import follow_start
from app.launch import engine_client, load_service
from app.listening import ListeningConfig, hypercorn_config
from app.logs import quieten_libraries
from app.remote_peers import RemotePeers
from app.service import Service
from app.serving import run_until_stopped
from app.start_screen import Start
from app.startup import Startup
from protocol.api import ServerIs
from protocol.spec import ApiSpec


async def serve(spec: ApiSpec, house: ApiHouse, begin: Callable[[], Awaitable[None]]) -> None:
    """Until the supervisor says that all are to stop, or that the service cannot go on. `begin` is called before
    connections are taken. Raises CheckpointError and StartError for
    what cannot be served."""
    serving = read(spec.serving)
    logging.getLogger().setLevel(serving.settings.log_level.upper())
    quieten_libraries()
    config = hypercorn_config(serving.settings)
    config.is_activated = serving.is_activated
    start = Start()
    peers = RemotePeers(house, start.startup)
    identity = ApiIdentity(spec.client_index, spec.epoch, spec.num_servers)
    client = engine_client(serving.settings, identity, peers)
    service = await trio.to_thread.run_sync(load, serving, client, peers, start.startup)
    sockets = inherited(spec.listeners, config)
    async with trio.open_nursery() as nursery:
        peers.follow(client, service.services.model.adapters, service.services.metrics)
        nursery.start_soon(client.run, house)
        nursery.start_soon(peers.tell, standing_of(client), service.services.metrics)
        nursery.start_soon(tell_of_failure, client, house)
        nursery.start_soon(tell_when_admitted, client, house)
        nursery.start_soon(follow_start, start.startup, house.states, False)
        await begin()
        await run_until_stopped(house.stops(), service, config, sockets, start)
        nursery.cancel_scope.cancel()


def load(serving: ApiServing, client: ActorEngineClient, peers: RemotePeers, startup: Startup) -> Service:
    """In a worker thread, so that heartbeats go on."""
    description = describe(serving.checkpoint.directory)
    return load_service(serving.settings, serving.checkpoint, description, client, peers, startup, serving.started_at)


def inherited(listeners: list[int], config: ListeningConfig) -> Sockets:
    sockets = [socket.socket(fileno=descriptor) for descriptor in listeners]
    return Sockets(sockets, [], []) if config.tls is not None else Sockets([], sockets, [])


def standing_of(client: ActorEngineClient) -> Callable[[], ServerIs]:
    def standing() -> ServerIs:
        readiness, stats = client.readiness, client.stats
        return ServerIs(
            is_ready=readiness.ready,
            reason=readiness.reason,
            late=readiness.late,
            num_requests=client.num_requests,
            num_running=stats.num_requests_running,
            num_waiting=stats.num_requests_waiting,
            is_admitted=client.admitted.is_set(),
        )

    return standing


async def tell_when_admitted(client: ActorEngineClient, house: ApiHouse) -> None:
    """At once, and not with the next regular word."""
    await client.admitted.wait()
    house.tell(standing_of(client)())


async def tell_of_failure(client: ActorEngineClient, house: ApiHouse) -> None:
    """What this server finds that no server could go on with, the supervisor is to know; what it knows, it hears once
    more."""
    await client.failed.wait()
    house.give_up(client.failure or "?")
