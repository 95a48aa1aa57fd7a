"""From --otlp-traces-endpoint to what makes and sends spans, or to the sentence that says why there is none. Used by
app/launch.py and app/service.py; loads nothing of OpenTelemetry unless it is asked for.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

from app.tracing.endpoint import FLAG, check_limits, check_protocol, traces_url
from protocol.errors import StartError

if TYPE_CHECKING:
    from app.tracing.export import SpanExport
    from app.tracing.otel import OtelSource

_NEEDED = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")
_QUEUE, _BATCH, _DELAY = "OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "OTEL_BSP_SCHEDULE_DELAY"
_NUMBERS = {_QUEUE: 8192, _BATCH: 128, _DELAY: 2000}
"""Unless the environment says otherwise. The delay is in milliseconds. To make a message of a batch takes some 5 ms, in
which nobody else gets far."""
MOST_IN_QUEUE = 2**20


@frozen
class Tracing:
    """Of one process that serves HTTP. `run` is somebody's task."""

    source: OtelSource
    export: SpanExport[Any]
    reads_callers: bool
    """Whether a client may say which trace its request belongs to."""

    @property
    def run(self) -> Callable[[], Awaitable[None]]:
        return self.export.run


def check_tracing(endpoint: str | None, environment: Mapping[str, str] = os.environ) -> None:
    """Raises StartError for traces that are asked for and cannot be had. Before anything is started."""
    if is_wanted(endpoint, environment):
        check_protocol(environment)
        check_limits(environment)
        for name, default in _NUMBERS.items():
            number(environment, name, default)
        if not is_installed():
            raise StartError(f"{FLAG} needs OpenTelemetry, which is not installed: run `scripts/install otel`")


def is_wanted(endpoint: str | None, environment: Mapping[str, str]) -> bool:
    """By the flag, if the environment does not turn all of OpenTelemetry off."""
    return bool(endpoint) and environment.get("OTEL_SDK_DISABLED", "").strip().lower() != "true"


def is_installed() -> bool:
    """Whether the extra `otel` is there."""
    try:
        return all(importlib.util.find_spec(name) is not None for name in _NEEDED)
    except ModuleNotFoundError:
        return False


def open_tracing(
    endpoint: str | None,
    version: str,
    server: int | None = None,
    environment: Mapping[str, str] = os.environ,
    *,
    service: str = "trillm",
) -> Tracing | None:
    """None: nobody wants traces. `server`: which of several API servers this is. Raises StartError."""
    if endpoint is None or not is_wanted(endpoint, environment):
        return None
    check_tracing(endpoint, environment)
    queue, batch, delay = (number(environment, name, default) for name, default in _NUMBERS.items())
    propagators = environment.get("OTEL_PROPAGATORS", "tracecontext")
    try:
        from app.tracing.otel import OtelSource, open_export, resource

        export = open_export(traces_url(endpoint), max_queue=queue, max_batch=batch, delay=delay / 1000)
        source = OtelSource(resource(service, version, server), export.put, version)
    except Exception as error:  # somebody else's code, which OTEL_* variables reach without us
        raise StartError(f"{FLAG}: OpenTelemetry cannot be set up: {error or type(error).__name__}"[:500]) from error
    return Tracing(source, export, "tracecontext" in propagators.split(","))


def number(environment: Mapping[str, str], name: str, default: int) -> int:
    """Raises StartError."""
    text = environment.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MOST_IN_QUEUE):
        raise StartError(f"{name} must be a number from 1 to {MOST_IN_QUEUE}, not {text[:40]!r}")
    return int(text)
