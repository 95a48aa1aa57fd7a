"""What one API server counts, as it travels to the others, and how several such pages become one. Pure; used by
app/metrics.py and app/remote_peers.py.

Requests, tokens and times are counted by the server that told them to its client, and are added up. What engines count
all servers hear; of that the highest is told, since a server that was started later has missed the engines before it.
Gauges are the telling server's own, but for what each has open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from app.engine_metrics import COUNTED_BY_ENGINES
from app.lora_metrics import LORAS_IN_USE, joined

HIGHEST = COUNTED_BY_ENGINES | {"trillm_actor_deaths", "trillm_actor_restarts"}
SUMMED_GAUGES = frozenset({"trillm:requests_live"})
GAUGES = ("gauge", "info")

Key = tuple[str, frozenset[tuple[str, str]]]


class PageSample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    name: str
    labels: dict[str, str]
    value: float


class PageFamily(msgspec.Struct, frozen=True, array_like=True, gc=False):
    name: str
    text: str
    type: str
    samples: list[PageSample]


class Page(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Of one API server."""

    families: list[PageFamily]
    num_open: int
    """Answers that are being given."""


_DECODER = msgspec.msgpack.Decoder(Page)


def read_page(data: bytes) -> Page:
    """Raises msgspec.DecodeError."""
    return _DECODER.decode(data)


def written(families: Iterable[Metric], num_open: int) -> bytes:
    page = Page([as_told(family) for family in families], num_open)
    return msgspec.msgpack.encode(page)


def as_told(family: Metric) -> PageFamily:
    samples = [PageSample(sample.name, sample.labels, sample.value) for sample in family.samples]
    return PageFamily(family.name, family.documentation, family.type, samples)


def together_with(own: Iterable[Metric], others: Sequence[tuple[Page, bool]]) -> list[Metric]:
    """One page of our own families and those of others; with each whether what it has open counts."""
    merged = {family.name: family for family in own}
    for page, is_live in others:
        for theirs in page.families:
            ours = merged.get(theirs.name)
            if theirs.type in GAUGES:
                if ours is not None and is_live:
                    _add_gauge(ours, theirs)
            elif ours is None:
                merged[theirs.name] = ours = Metric(theirs.name, theirs.text, theirs.type)
                ours.samples = [Sample(sample.name, sample.labels, sample.value) for sample in theirs.samples]
            else:
                _add(ours, theirs, max if theirs.name in HIGHEST else float.__add__)
    return list(merged.values())


def _add_gauge(ours: Metric, theirs: PageFamily) -> None:
    if theirs.name in SUMMED_GAUGES:
        _add(ours, theirs, float.__add__)
    elif theirs.name == LORAS_IN_USE:
        ours.samples = [joined(sample, [other.labels for other in theirs.samples]) for sample in ours.samples]


def _add(ours: Metric, theirs: PageFamily, add: Callable[[float, float], float]) -> None:
    """Sample by sample, by name and labels; what we do not have comes after what we have."""
    places: dict[Key, int] = {_key(sample.name, sample.labels): n for n, sample in enumerate(ours.samples)}
    for sample in theirs.samples:
        place = places.get(_key(sample.name, sample.labels))
        if place is None:
            ours.samples.append(Sample(sample.name, sample.labels, sample.value))
        else:
            before = ours.samples[place]
            ours.samples[place] = before._replace(value=add(float(before.value), sample.value))


def _key(name: str, labels: dict[str, str]) -> Key:
    return name, frozenset(labels.items())
