"""A service from the first connection to the last, while the actors are the caller's: connections end before the
engines do. Used by app/launch.py and app/api_server.py; app/hypercorn_command.py has its own way, and shares some.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import trio
from hypercorn.config import Sockets
from hypercorn.trio.run import worker_serve
from hypercorn.utils import wrap_app

from app.bounded_send import BoundedSends
from app.counted import counted
from app.hypercorn_mended import hypercorn_mended
from app.listening import ListeningConfig, address
from app.notify import Notifier, ServiceReport
from app.service import Service
from app.start_screen import Start, StartScreen, served
from protocol.errors import UnavailableError
from protocol.ids import FIRST_CLIENT

logger = logging.getLogger("trillm")


async def run_until_stopped(
    signals: AsyncIterator[int],
    service: Service,
    config: ListeningConfig,
    sockets: Sockets,
    start: Start,
    notifier: Notifier | None = None,
) -> None:
    """Serve HTTP until a signal or a failure. The actors are the caller's, and outlive the connections."""
    sends = BoundedSends(service.settings.send_timeout)
    report = ServiceReport(service.client, notifier)
    stop = trio.Event()
    with hypercorn_mended(sends, http2=service.settings.http2):
        async with trio.open_nursery() as around:
            around.start_soon(report.run, service.client.admitted)
            around.start_soon(stop_on_signal, signals, service, sends, stop, report, start.screen)
            around.start_soon(stop_on_failure, service, stop)
            around.start_soon(service.run_background)
            around.start_soon(service.run_tools)
            around.start_soon(service.run_tracing)
            around.start_soon(announce, service, address(sockets), start)
            app = wrap_app(service.app, config.wsgi_max_body_size, "asgi")
            if config.is_activated:
                await either(service.client.admitted, stop)
            if not (config.is_activated and stop.is_set()):  # then who waits is left to the next server
                await worker_serve(app, config, sockets=sockets, shutdown_trigger=stop.wait)
            await service.services.background.finish()
            around.cancel_scope.cancel()


async def either(one: trio.Event, other: trio.Event) -> None:
    """Until one of them is set."""
    async with trio.open_nursery() as nursery:

        async def wait(event: trio.Event) -> None:
            await event.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(wait, one)
        nursery.start_soon(wait, other)


async def announce(service: Service, url: str | None, start: Start) -> None:
    """Takes requests once the adapters are checked, and has people told where, which model, and what to do next.
    Without a URL, hypercorn has said where."""
    identity = service.client.identity
    start.startup.awaited = "links to the engines"
    await service.client.attached_once.wait()
    start.startup.awaited = "reading --lora-modules" if service.settings.lora_modules else ""
    await service.check_adapters()
    if not service.client.alive:
        return
    service.client.admit()
    start.startup.finish()
    if not identity.has_peers:  # else the main process tells, once for all
        told = what_is_served(service), what_is_served_in_short(service)
        start.screen.ready(start.startup, served(service.settings, service.model_name, url, *told))
    elif identity.client == FIRST_CLIENT:
        logger.info("serving %s", what_is_served(service))


def what_is_served(service: Service) -> str:
    """In one line, for the log: the model's directory, and what the engine made of it."""
    facts = service.services.facts()
    tokens = facts.num_blocks * facts.block_size
    engines = service.settings.num_engines
    by = f" by {engines} engines, each" if engines > 1 else ""
    return (
        f"{service.directory} on {facts.device} in {facts.dtype}{by}: a context of "
        f"{facts.max_model_len} tokens, {facts.weights_bytes / 2**20:.0f} MiB of weights, a KV cache of {tokens} "
        f"tokens ({facts.kv_cache_bytes / 2**20:.0f} MiB)"
    )


def what_is_served_in_short(service: Service) -> str:
    """For a line of 80 columns in which the name need not stand: that is above it, unless another is served."""
    facts, model = service.services.facts(), service.services.model
    tokens, engines = facts.num_blocks * facts.block_size, service.settings.num_engines
    name = "" if service.model_name == model.checkpoint_name else f"{model.checkpoint_name}, "
    by = f"{engines} engines, each " if engines > 1 else ""
    place = "the CPU" if facts.device == "cpu" else facts.device
    kind = "dummy weights" if facts.dtype == "none" else f"{facts.dtype} on {place}"
    return (
        f"{name}{by}{kind}; "
        f"context {facts.max_model_len:,}; KV cache {tokens:,} tokens ({binary_size(facts.kv_cache_bytes)})"
    )


def binary_size(num_bytes: int) -> str:
    """As "1 GiB", "1.5 GiB", "356 MiB"."""
    if (mebibytes := round(num_bytes / 2**20)) < 1024:
        return f"{mebibytes} MiB"
    return f"{num_bytes / 2**30:.1f}".removesuffix(".0") + " GiB"


async def stop_on_signal(
    signals: AsyncIterator[int],
    service: Service,
    sends: BoundedSends,
    stop: trio.Event,
    report: ServiceReport,
    screen: StartScreen,
) -> None:
    """The first SIGTERM or SIGINT drains: no new requests, running ones finish until the deadline. A second one ends
    those at once, with an error frame for whoever reads it."""
    await anext(signals)
    screen.stopping()
    num_live = service.services.background.num_live
    those = f", among them those of {counted(num_live, 'response')} in the background" if num_live else ""
    num_requests, seconds = service.client.num_requests, drain_limit(service)
    if service.client.admitted.is_set():
        logger.info("draining: %s may finish within %.0f s%s", counted(num_requests, "request"), seconds, those)
    else:
        logger.info("stopping, before it was ready")
    service.client.drain("the server is shutting down")
    service.services.background.drain("the server is shutting down")
    report.stopping(drain_limit(service))
    service.services.drain.begin()
    stop.set()
    # What is held by the operator does not move: nobody would wake it any more.
    with trio.move_on_after(0 if service.client.run_state.is_held else drain_limit(service)):
        await anext(signals)
    service.client.end_all(UnavailableError("The server is shutting down"))
    service.services.background.end_all("The server is shutting down")
    service.client.end_operations("the server is shutting down")
    sends.hurry()
    async for _ in signals:
        pass  # it is being stopped as fast as the deadlines allow


def drain_limit(service: Service) -> float:
    return service.settings.shutdown_timeout


async def stop_on_failure(service: Service, stop: trio.Event) -> None:
    await service.client.failed.wait()  # the supervisor has said why
    service.services.background.end_all("The server cannot go on")
    stop.set()
