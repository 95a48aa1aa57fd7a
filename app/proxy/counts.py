"""What the proxy counts, for Prometheus. Beside it are the http_* families that every server here has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal, final, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from app.distribution import Distribution
from app.metric_families import Families
from app.proxy.address import UpstreamAddress
from app.proxy.upstreams import Upstreams

Way = Literal["handed_over", "not_kept", "not_taken", "one_server", "recomputed", "refused"]
"""How an answer came about. "not_kept": the prefill server has computed the prompt, and given nothing of it away.
"not_taken": it has, and a decode server has computed the prompt again, since it could not take over, since the first
one has broken off, or for reasons of its own: the usage that it has told says that it had found nothing of the prompt.
"recomputed": no prefill server could do it. "refused": by a prefill server, as it would have been by any."""
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@final
class ProxyCounts:
    def __init__(self) -> None:
        self.prefill_seconds = Distribution(SECONDS)
        self._ways: dict[str, float] = dict.fromkeys(get_args(Way), 0)
        self._ends: Counter[tuple[str, str, str]] = Counter()

    def went(self, way: Way) -> None:
        """A request for an answer."""
        self._ways[way] += 1

    def ended(self, role: str, address: UpstreamAddress, end: str) -> None:
        """A request to a server."""
        self._ends[role, str(address), end] += 1

    def collect(self, roles: Iterable[Upstreams], now: float) -> Iterable[Metric]:
        families = Families({})
        text = "Requests for answers, by whether one server computed the prompt and another went on with it."
        yield families.counters("trillm:proxy_answers", text, "way", self._ways)
        text = "Seconds until a prefill server had computed a prompt."
        yield families.histogram("trillm:proxy_prefill_seconds", text, self.prefill_seconds)
        text = "Requests to servers, by how they ended."
        requests = CounterMetricFamily("trillm:proxy_requests", text, labels=["role", "server", "end"])
        for labels, number in self._ends.items():
            requests.add_metric(labels, number)
        yield requests
        in_flight = GaugeMetricFamily(
            "trillm:proxy_requests_in_flight", "Requests that servers are at.", labels=["role", "server"]
        )
        resting = GaugeMetricFamily(
            "trillm:proxy_server_rests",
            "1 while it is not asked, since it has failed or is too busy.",
            labels=["role", "server"],
        )
        for upstreams in roles:
            for one in upstreams:
                of_one = (upstreams.role, str(one.address))
                in_flight.add_metric(of_one, one.num_in_flight)
                resting.add_metric(of_one, not one.is_available(now))
        yield in_flight
        yield resting
