"""What is stored of responses, and which of them run in the background, for app/metrics.py's registry."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import final

from prometheus_client.metrics_core import Metric

from app.metric_families import Families
from app.responses.background import BackgroundResponses
from app.responses.store import ResponseStore


@final
class ResponseCollector:
    """Reads at scrape time. What is on disk has been counted by then: see app/routes/ops.py."""

    def __init__(
        self, store: ResponseStore, background: BackgroundResponses, clock: Callable[[], float], model_name: str
    ) -> None:
        """`clock`: Unix time in seconds."""
        self._store = store
        self._background = background
        self._clock = clock
        self._families = Families({"model_name": model_name})

    def collect(self) -> Iterable[Metric]:
        gauge, totals = self._families.gauge, self._store.totals
        yield gauge("trillm:stored_responses", "Responses in the store, of all that share it.", totals.num_responses)
        text = "Their size in bytes, with inputs and events."
        yield gauge("trillm:stored_responses_bytes", text, totals.num_bytes)
        oldest = totals.oldest_used_at
        text = "Since the least recently used of them was made or gone on from."
        yield gauge("trillm:stored_responses_oldest_seconds", text, 0 if oldest is None else self._clock() - oldest)
        text = "Ends of responses that wait for the disk."
        yield gauge("trillm:stored_responses_unrecorded", text, self._store.num_unrecorded)
        text = "Responses of this server that run in the background."
        states = self._background.num_by_status()
        yield self._families.gauges("trillm:background_responses", text, "status", states)
