"""The other way to launch: `hypercorn --worker-class trio 'app:create_app()'`, where the application's own lifespan
owns the actors, and hypercorn the connections. Used by app/__init__.py; `trillm serve` is in app/launch.py.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import sys

import trio
from hypercorn.config import Config
from quart_trio import QuartTrio

from actors.handles import HouseSpec, die_with_parent
from app.bounded_send import BoundedSends
from app.follow_start import follow_start
from app.hypercorn_mended import hypercorn_mended
from app.kv_start import check_connectors
from app.launch import checked, engine_client
from app.notify import take_variables
from app.service import Service
from app.serving import announce, drain_limit
from app.start_screen import Start
from protocol.errors import StartError, TrillmError

logger = logging.getLogger("trillm")

SHUTDOWN_SECONDS = float(Config.shutdown_timeout)
"""What hypercorn gives to an application that stops, unless its configuration says otherwise."""
RECORDING_SECONDS = 10.0
"""Of these, kept for the store of responses: two calls of it, at most."""


def create_app_from_environment() -> QuartTrio:
    """As `trillm serve` without arguments would serve it: MODEL and settings from TRILLM_* and TRILLM_CONFIG.

    Fetches the model if it is not there yet. What cannot be served ends this process with one sentence.
    """
    from app.cli import keep_files_ours, settings_from_environment
    from app.commands.ending import refuse
    from app.commands.fetch import fetch
    from app.commands.sources import warn_of_unknown_variables
    from app.logs import leave_hypercorn_its_lines, set_up_logging

    try:
        take_variables(os.environ)  # hypercorn does not speak with a service manager, and nobody else is to
        model, settings = settings_from_environment()
        set_up_logging(settings.log_level, settings.log_format)
        leave_hypercorn_its_lines()
        warn_of_unknown_variables()
        keep_files_ours()
        claim_to_be_the_only_worker()
        if settings.api_server_count > 1:
            raise StartError("hypercorn's command runs one API server: --api-server-count is for `trillm serve`")
        if settings.node_rank > 0:
            raise StartError("hypercorn's command serves: --node-rank above 0 is for `trillm serve`")
        start = Start()
        checkpoint = fetch(model, settings, start.startup)
        start.screen.starting((settings.served_model_name or (checkpoint.name,))[0], None)
        trio.run(check_connectors, settings)  # hypercorn has none of its own running yet
        client = engine_client(settings)
        service = Service(settings, checkpoint, checked(settings, checkpoint), client, startup=start.startup)
        return attach_to_lifespan(service, settings.house(checkpoint.directory, checkpoint.draft), start)
    except TrillmError as error:
        sys.exit(refuse(error.message))


def claim_to_be_the_only_worker() -> None:
    """Each worker would start an engine of its own. Raises StartError if hypercorn has started another one.

    The claim is an abstract socket address, which the kernel gives back when this process ends, however it ends.
    """
    master = multiprocessing.parent_process()
    if master is None:
        return  # `-w 0`: hypercorn runs us in its own process
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0trillm-worker-{os.getuid()}-{master.pid}")
    except OSError as error:
        claim.close()
        raise StartError("hypercorn has another worker already: run it with one (-w 1)") from error
    claim.detach()  # kept open for the life of the process


def attach_to_lifespan(service: Service, house: HouseSpec, start: Start) -> QuartTrio:
    """The application for `hypercorn --worker-class trio`: its lifespan owns the actors.

    hypercorn's command cannot be told to exit with a status by an application. When the service cannot go on, this
    worker terminates, which takes hypercorn down; a unit file should restart it always, not on failure only.
    """
    if multiprocessing.parent_process() is not None:
        die_with_parent(os.getppid())

    async def begin() -> None:
        service.app.nursery.start_soon(live_in_worker, service, house, start)

    async def stop() -> None:
        await service.services.background.finish(background_seconds(service))

    service.app.before_serving(begin)
    service.app.after_serving(stop)
    # The lifespan's tasks, the actors among them, are ended when `stop` has returned: no sooner, and not only then.
    service.app.config["BACKGROUND_TASK_SHUTDOWN_TIMEOUT"] = SHUTDOWN_SECONDS
    return service.app


def background_seconds(service: Service) -> float:
    """How long responses may go on in the background. Once the connections have ended, which is hypercorn's to bound
    (--graceful-timeout). What is held by the operator does not move."""
    most = SHUTDOWN_SECONDS - RECORDING_SECONDS
    return 0.0 if service.client.run_state.is_held else min(drain_limit(service), most)


async def live_in_worker(service: Service, house: HouseSpec, start: Start) -> None:
    with hypercorn_mended(BoundedSends(service.settings.send_timeout), http2=service.settings.http2):
        await live_with_actors(service, house, start)


async def live_with_actors(service: Service, house: HouseSpec, start: Start) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.client.run_actors, house)
        nursery.start_soon(leave_termination_to_master)
        nursery.start_soon(follow_start, start.startup, service.client.actors)
        nursery.start_soon(announce, service, None, start)
        nursery.start_soon(service.run_background)
        nursery.start_soon(service.run_tools)
        nursery.start_soon(service.run_tracing)
        await service.client.failed.wait()  # the supervisor has said why
        if multiprocessing.parent_process() is None:
            os.kill(os.getpid(), signal.SIGINT)  # `-w 0`: the signal that hypercorn handles in an orderly way
        else:
            os.kill(os.getppid(), signal.SIGTERM)


async def leave_termination_to_master() -> None:
    """hypercorn's master tells its worker to stop by an event. A SIGTERM that reaches the worker as well (as from a
    service manager that signals the whole group) must not cut the streams off that the master lets finish."""
    if multiprocessing.parent_process() is not None:
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                logger.info("SIGTERM: left to hypercorn's master")
