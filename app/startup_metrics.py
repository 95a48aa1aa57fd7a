"""How long the phases of the start took, for Prometheus. Registered by app/service.py."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from prometheus_client.metrics_core import Metric

from app.metric_families import Families
from app.startup import Startup


@final
class StartupCollector:
    """A gauge for each phase that is over."""

    def __init__(self, startup: Startup, model_name: str) -> None:
        self._startup = startup
        self._families = Families({"model_name": model_name})

    def collect(self) -> Iterable[Metric]:
        text = "How long this phase of the server's start took."
        yield self._families.gauges("trillm:startup_seconds", text, "phase", dict(self._startup.seconds))
