"""`trillm proxy` from its settings to its exit status, as app/launch.py and app/serving.py are for `trillm serve`."""

from __future__ import annotations

import logging
import signal
import ssl
from collections.abc import AsyncIterator, Mapping
from importlib.metadata import version
from pathlib import Path

import trio
from hypercorn.trio.run import worker_serve
from hypercorn.utils import wrap_app

from app.bounded_send import BoundedSends
from app.counted import counted
from app.drain import Drain
from app.hypercorn_mended import hypercorn_mended
from app.listening import address, hypercorn_config, open_sockets
from app.proxy.counts import ProxyCounts
from app.proxy.factory import create_proxy_app, make_forwarding
from app.proxy.settings import ProxySettings
from app.proxy.upstream_client import UpstreamClient
from app.tracing.start import open_tracing
from protocol.errors import StartError

logger = logging.getLogger("trillm")

DESCRIPTORS_EACH = 2
"""A client's connection, and one to a server for it."""


async def serve_proxy(settings: ProxySettings, manager: Mapping[str, str]) -> int:
    """Until a signal; the exit status. `manager`: what the service manager said (app/notify.py), of which sockets count
    here. Raises StartError for an address that is taken and files that cannot be read."""
    config = hypercorn_config(settings)
    tracing = open_tracing(settings.otlp_traces_endpoint, version("trillm"), service="trillm-proxy")
    certificates = trusted(settings.upstream_ca_certs)
    draining, ending, stop = Drain(), Drain(), trio.Event()
    sends, counts = BoundedSends(settings.send_timeout), ProxyCounts()
    with (
        open_sockets(settings, config, manager) as sockets,
        trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals,
        hypercorn_mended(sends, http2=settings.http2, descriptors_each=DESCRIPTORS_EACH),
    ):
        async with (
            UpstreamClient(counts, ending, certificates, settings.upstream_timeout) as client,
            trio.open_nursery() as around,
        ):
            forwarding = make_forwarding(settings, client, counts)
            app = create_proxy_app(settings, forwarding, draining, tracing)
            if tracing is not None:
                around.start_soon(tracing.run)

            async def stop_on_signal() -> None:
                await anext(signals)
                num = sum(one.num_in_flight for one in (*forwarding.prefill, *forwarding.decode))
                logger.info("draining: %s may finish within %.0f s", counted(num, "request"), settings.shutdown_timeout)
                draining.begin()
                stop.set()
                await end_in_time(signals, settings.shutdown_timeout, ending, sends)

            around.start_soon(stop_on_signal)
            prefill, decode = (
                ", ".join(str(one.address) for one in role) for role in (forwarding.prefill, forwarding.decode)
            )
            where = address(sockets)
            logger.info("listening on %s as a proxy: prompts go to %s; answers come from %s", where, prefill, decode)
            wrapped = wrap_app(app, config.wsgi_max_body_size, "asgi")
            await worker_serve(wrapped, config, sockets=sockets, shutdown_trigger=stop.wait)
            around.cancel_scope.cancel()
    logger.info("stopped")
    return 0


async def end_in_time(signals: AsyncIterator[int], seconds: float, ending: Drain, sends: BoundedSends) -> None:
    """A second signal, or the deadline, ends running answers at once, with an error for whoever reads it."""
    with trio.move_on_after(seconds):
        await anext(signals)
    ending.begin()
    sends.hurry()
    async for _ in signals:
        pass  # it is being stopped as fast as the deadlines allow


def trusted(authorities: Path | None) -> ssl.SSLContext:
    """Whom https servers are believed. Raises StartError."""
    try:
        return ssl.create_default_context(cafile=authorities)
    except OSError as error:  # also ssl.SSLError
        raise StartError(f"--upstream-ca-certs {authorities} cannot be used: {error.strerror or error}") from error
