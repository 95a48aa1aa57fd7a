"""Numbers to Prometheus' families of samples. The collectors of app/metrics.py make theirs with it when scraped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString

from app.distribution import Distribution


@final
class Families:
    """Families of which every sample has these labels first. Counters and gauges below zero are told as zero."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._names = list(labels)
        self._values = list(labels.values())

    def gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=self._names)
        family.add_metric(self._values, max(value, 0))
        return family

    def gauges(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        """One sample for each value of one more label."""
        family = GaugeMetricFamily(name, text, labels=[*self._names, label])
        for value, number in values.items():
            family.add_metric([*self._values, value], max(number, 0))
        return family

    def info(self, name: str, text: str, facts: Mapping[str, str]) -> Metric:
        """A gauge that is always 1: its labels are the facts."""
        family = GaugeMetricFamily(name, text, labels=[*self._names, *facts])
        family.add_metric([*self._values, *facts.values()], 1)
        return family

    def counter(self, name: str, text: str, value: float) -> Metric:
        """`name` is without _total."""
        family = CounterMetricFamily(name, text, labels=self._names)
        family.add_metric(self._values, max(value, 0))
        return family

    def counters(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        """One sample for each value of one more label."""
        return self.counters_by(name, text, (label,), {(value,): number for value, number in values.items()})

    def counters_by(
        self, name: str, text: str, labels: Sequence[str], values: Mapping[tuple[str, ...], float]
    ) -> Metric:
        """One sample for each tuple of values of several more labels."""
        family = CounterMetricFamily(name, text, labels=[*self._names, *labels])
        for several, number in values.items():
            family.add_metric([*self._values, *several], max(number, 0))
        return family

    def histogram(self, name: str, text: str, distribution: Distribution) -> Metric:
        family = HistogramMetricFamily(name, text, labels=self._names)
        family.add_metric(self._values, buckets(distribution.cumulative()), distribution.total)
        return family


def buckets(cumulative: Iterable[tuple[float, int]]) -> list[tuple[str, float]]:
    """As exposition formats spell bounds: "1.0", "1e+06", "+Inf"."""
    return [(floatToGoString(bound), number) for bound, number in cumulative]  # type: ignore[no-untyped-call]


def together(metrics: Iterable[Metric]) -> Iterable[Metric]:
    """Families of the same name as one, as the formats want them: each engine has its own samples."""
    merged: dict[str, Metric] = {}
    for metric in metrics:
        if metric.name in merged:
            merged[metric.name].samples += metric.samples
        else:
            merged[metric.name] = metric
    return merged.values()
