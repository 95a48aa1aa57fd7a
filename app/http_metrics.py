"""HTTP requests for Prometheus, under the names and labels that dashboards know from prometheus-fastapi-instrumentator,
which vLLM uses. Counted by app/access_log.py at the end of each exchange, told by app/metrics.py when scraped.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import final

from attrs import define
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric

from app.distribution import Distribution
from app.metric_families import buckets

FINE_SECONDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5),
    *(5.0, 7.5, 10.0, 30.0, 60.0),
)
COARSE_SECONDS = (0.1, 0.5, 1.0)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""A client may send any word; the others count as one, so that nobody makes series without end."""


@define
class _Sizes:
    number: int = 0
    total: int = 0

    def add(self, size: int) -> None:
        self.number += 1
        self.total += size


@final
class HttpMetrics:
    """By handler: the route's path with its parameters in braces, or "none" for what is no route."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._seconds: defaultdict[tuple[str, str], Distribution] = defaultdict(lambda: Distribution(COARSE_SECONDS))
        self._fine = Distribution(FINE_SECONDS)
        self._request_sizes: defaultdict[str, _Sizes] = defaultdict(_Sizes)
        self._response_sizes: defaultdict[str, _Sizes] = defaultdict(_Sizes)

    def observe(self, handler: str, method: str, status: int, seconds: float, received: int, sent: int) -> None:
        """One exchange is over: how long it took, and the bytes of both bodies. Status 499: its client left before
        it had anything of an answer."""
        method = method if method in METHODS else "OTHER"
        self._requests[handler, method, f"{status // 100}xx"] += 1
        self._seconds[handler, method].observe(seconds)
        self._fine.observe(seconds)
        self._request_sizes[handler].add(received)
        self._response_sizes[handler].add(sent)

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily("http_requests", "Requests answered.", labels=["handler", "method", "status"])
        for labels, number in self._requests.items():
            requests.add_metric(labels, number)
        yield requests
        text = "From a request's head to the end of its answer."
        seconds = HistogramMetricFamily("http_request_duration_seconds", text, labels=["handler", "method"])
        for ours, distribution in self._seconds.items():
            seconds.add_metric(ours, buckets(distribution.cumulative()), distribution.total)
        yield seconds
        text = "From a request's head to the end of its answer, with finer bounds."
        fine = HistogramMetricFamily("http_request_duration_highr_seconds", text, labels=[])
        fine.add_metric([], buckets(self._fine.cumulative()), self._fine.total)
        yield fine
        yield _summary("http_request_size_bytes", "Bytes of request bodies.", self._request_sizes)
        yield _summary("http_response_size_bytes", "Bytes of response bodies.", self._response_sizes)


def _summary(name: str, text: str, sizes: dict[str, _Sizes]) -> Metric:
    family = SummaryMetricFamily(name, text, labels=["handler"])
    for handler, of_handler in sizes.items():
        family.add_metric([handler], of_handler.number, of_handler.total)
    return family
