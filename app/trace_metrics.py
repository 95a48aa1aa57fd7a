"""Spans that were sent to the collector, and those that were not, for app/metrics.py's registry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, final

from prometheus_client.metrics_core import Metric

from app.metric_families import Families

if TYPE_CHECKING:
    from app.tracing.export import SpanExport


@final
class TraceCollector:
    """Reads at scrape time what has been counted."""

    def __init__(self, export: SpanExport[Any], model_name: str) -> None:
        self._export = export
        self._families = Families({"model_name": model_name})

    def collect(self) -> Iterable[Metric]:
        export = self._export
        outcomes = {"sent": export.num_exported, "failed": export.num_failed, "dropped": export.num_dropped}
        text = "Spans of traces: sent to the collector, sent in vain, or dropped for want of room in the queue."
        yield self._families.counters("trillm:trace_spans", text, "outcome", outcomes)
