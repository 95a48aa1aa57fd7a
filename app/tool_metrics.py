"""Calls of MCP tools and sessions with their servers, for app/metrics.py's registry."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import final

from prometheus_client.metrics_core import Metric

from app.metric_families import Families
from app.tools.call_counts import CallCounts


@final
class ToolCollector:
    """Reads at scrape time what has been counted."""

    def __init__(self, counts: CallCounts, num_sessions: Callable[[], int], model_name: str) -> None:
        self._counts = counts
        self._num_sessions = num_sessions
        self._families = Families({"model_name": model_name})

    def collect(self) -> Iterable[Metric]:
        families = self._families
        yield families.gauge(
            "trillm:mcp_sessions", "Sessions with MCP servers that are connected.", self._num_sessions()
        )
        text = "Calls of MCP tools, by the server's label (request: the request's own server_url) and how they ended."
        yield families.counters_by("trillm:mcp_calls", text, ("server_label", "outcome"), self._counts.calls)
        text = "From a call of an MCP tool to its end."
        yield families.histogram("trillm:mcp_call_seconds", text, self._counts.seconds)
