"""Prometheus metrics under vLLM's names, in a registry of their own.

What happens often is counted in plain numbers, by app/answer.py and app/access_log.py; everything else is read when
scraped. Beside it stand what this process takes (process_*) and its interpreter (python_*).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from app.actor_metrics import ActorCollector
from app.engine import EngineClient
from app.engine_metrics import engine_metrics, server_metrics
from app.http_metrics import HttpMetrics
from app.metric_families import Families, together
from app.request_metrics import Requests

PLAIN_TEXT = "text/plain; version=0.0.4; charset=utf-8"


@final
class Metrics:
    """All metrics of one API server."""

    def __init__(self, engine: EngineClient, model_name: str) -> None:
        self.requests = Requests()
        self.http = HttpMetrics()
        self._engine = engine
        self._model_name = model_name
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._registry.register(ActorCollector(engine, model_name))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def add(self, collector: Collector) -> None:
        """Have this read, too, when metrics are scraped."""
        self._registry.register(collector)

    def collect(self) -> Iterable[Metric]:
        """For the registry."""
        yield from server_metrics(self._engine, Families({"model_name": self._model_name}))
        yield from together(self._of_engines())
        yield from self.http.collect()

    def _of_engines(self) -> Iterable[Metric]:
        for reading in self._engine.readings():
            families = Families({"model_name": self._model_name, "engine": str(reading.index)})
            yield from engine_metrics(reading, families)
            yield from self.requests.of(reading.index).collect(families)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The page and its content type: OpenMetrics for who accepts that, as Prometheus does."""
        if "application/openmetrics-text" in accept:
            page: bytes = openmetrics.generate_latest(self._registry, openmetrics.ALLOWUTF8)  # type: ignore[no-untyped-call]
            return page, openmetrics.CONTENT_TYPE_LATEST
        return generate_latest(self._registry), PLAIN_TEXT
