"""Prometheus metrics under vLLM's names, in a registry of their own.

What happens often is counted in plain numbers, by app/answer.py and app/access_log.py; everything else is read when
scraped. Beside it stand what this process takes (process_*) and its interpreter (python_*).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from app.metrics_page import Page, together_with, written
from app.peers import CountedElsewhere
from app.request_metrics import Requests

PLAIN_TEXT = "text/plain; version=0.0.4; charset=utf-8"


@final
class Collected:
    """For a registry: what has been collected already."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def registry_of(*collectors: Collector) -> CollectorRegistry:
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    return registry


def rendered(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """The page and its content type: OpenMetrics for who accepts that, as Prometheus does."""
    if "application/openmetrics-text" in accept:
        page: bytes = openmetrics.generate_latest(registry, openmetrics.ALLOWUTF8)  # type: ignore[no-untyped-call]
        return page, openmetrics.CONTENT_TYPE_LATEST
    return generate_latest(registry), PLAIN_TEXT


def of_this_process() -> tuple[Collector, ...]:
    nobodys = CollectorRegistry()
    return ProcessCollector(registry=nobodys), PlatformCollector(registry=nobodys), GCCollector(registry=nobodys)


@final
class Metrics:
    """All metrics of one API server."""

    def __init__(self, engine: EngineClient, model_name: str, *, has_peers: bool = False) -> None:
        """`has_peers`: there are other API servers, and what all count is told as one. What one process takes is then
        not told."""
        self.past: Page | None = None
        """What this API server counted before it was started again."""
        self.requests = Requests()
        self.http = HttpMetrics()
        self._engine = engine
        self._model_name = model_name
        self._collectors: list[Collector] = [self, ActorCollector(engine, model_name)]
        self._registry = None if has_peers else registry_of(*self._collectors, *of_this_process())

    def add(self, collector: Collector) -> None:
        """Have this read, too, when metrics are scraped."""
        self._collectors.append(collector)
        if self._registry is not None:
            self._registry.register(collector)

    def page(self) -> bytes:
        """What this API server counts and has counted, for the others (app/metrics_page.py)."""
        return written(self._with_past(), self.requests.num_open)

    def _with_past(self) -> list[Metric]:
        own = (family for collector in self._collectors for family in collector.collect())
        return together_with(own, [] if self.past is None else [(self.past, False)])

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

    def render(self, accept: str = "", others: Sequence[CountedElsewhere] = ()) -> tuple[bytes, str]:
        """As `rendered`."""
        registry = self._registry
        if registry is None:
            registry = registry_of(Collected(self.families(others)))
        return rendered(registry, accept)

    def families(self, others: Sequence[CountedElsewhere] = ()) -> list[Metric]:
        """What all API servers count, as one."""
        return together_with(self._with_past(), [(one.page, one.is_live) for one in others])
