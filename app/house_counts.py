"""What all API servers count, read from the families of samples that /metrics tells, so that both say the same. Pure;
used by app/house_reader.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import final

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from app.house import HouseHistogram

DEATHS, REPLAYED, CONDEMNED = "trillm_actor_deaths", "trillm_requests_replayed", "trillm_requests_condemned"
TIMEOUTS, LIVE = "trillm_request_timeouts", "trillm:requests_live"
TTFT, ITL = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"
E2E = "vllm:e2e_request_latency_seconds"


@final
class HouseCounts:
    """Of one moment."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._samples = {family.name: family.samples for family in families}

    def total(self, name: str) -> int:
        """A gauge or counter, over all its labels; 0 if nobody has counted any."""
        return sum(int(sample.value) for sample in self._of(name) if not sample.name.endswith("_created"))

    def deaths(self) -> Mapping[str, int]:
        """By the actor's name."""
        return {sample.labels["actor"]: int(sample.value) for sample in self._of(DEATHS)}

    def histogram(self, name: str) -> HouseHistogram:
        """Of all engines together."""
        upto: dict[float, int] = {}
        total = 0.0
        for sample in self._of(name):
            if sample.name == f"{name}_bucket":
                bound = float(sample.labels["le"])
                upto[bound] = upto.get(bound, 0) + int(sample.value)
            elif sample.name == f"{name}_sum":
                total += float(sample.value)
        bounds = sorted(upto)
        counts = [after - before for before, after in pairwise([0, *(upto[bound] for bound in bounds)])]
        return HouseHistogram(bounds=[bound for bound in bounds if bound < math.inf], counts=counts, sum=total)

    def _of(self, name: str) -> Iterable[Sample]:
        return self._samples.get(name, ())
