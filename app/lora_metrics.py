"""vLLM's gauge of the adapters in use, for app/metrics.py's registry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from app.engine import EngineClient

LORAS_IN_USE = "vllm:lora_requests_info"
RUNNING, WAITING = "running_lora_adapters", "waiting_lora_adapters"


class LoraCollector:
    """Reads at scrape time which adapters live requests have. As in vLLM the names are labels, and the value is the
    time, so that the newest series is the one that holds."""

    def __init__(self, engine: EngineClient, max_loras: int, clock: Callable[[], float]) -> None:
        """`clock`: Unix time in seconds."""
        self._engine = engine
        self._max_loras = max_loras
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        used = self._engine.loras_in_use
        family = GaugeMetricFamily(
            LORAS_IN_USE,
            "Adapters of requests that have a token, and of those that have none yet; the value is the time.",
            labels=["max_lora", RUNNING, WAITING],
        )
        family.add_metric([str(self._max_loras), ",".join(used.running), ",".join(used.waiting)], self._clock())
        yield family


def joined(sample: Sample, others: Iterable[Mapping[str, str]]) -> Sample:
    """With the adapters that are in use elsewhere, as the labels there tell."""
    labels = dict(sample.labels)
    for label in (RUNNING, WAITING):
        names = {name for told in (labels, *others) for name in told.get(label, "").split(",") if name}
        labels[label] = ",".join(sorted(names))
    return sample._replace(labels=labels)
