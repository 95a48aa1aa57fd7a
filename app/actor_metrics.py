"""The supervisor's view of each actor and what went wrong so far, for Prometheus. Registered by app/metrics.py; reads
everything when it is scraped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from actors.handles import ActorState
from app.engine import EngineClient


@final
class ActorCollector:
    """Per actor: up, age of its heartbeat, phase, restarts, deaths. Of the server: what deaths and limits did."""

    def __init__(self, engine: EngineClient, model_name: str) -> None:
        self._engine = engine
        self._model_name = model_name

    def collect(self) -> Iterable[Metric]:
        states, incidents = self._engine.actors(), self._engine.incidents
        up = self._gauge("trillm_actor_up", "1 if the actor serves.")
        age = self._gauge("trillm_actor_heartbeat_age_seconds", "Since the actor was last heard of.")
        phase = self._gauge("trillm_actor_phase_seconds", "How long the actor has been in its phase.", "phase")
        restarts = self._counter("trillm_actor_restarts", "Times that the actor was started again.", "actor")
        for state in states:
            up.add_metric([self._model_name, state.name], float(state.ready))
            age.add_metric([self._model_name, state.name], max(0.0, state.heartbeat_age))
            phase.add_metric([self._model_name, state.name, state.phase], phase_seconds(state))
            restarts.add_metric([self._model_name, state.name], state.restarts)
        yield from (up, age, phase, restarts)

        deaths = self._counter("trillm_actor_deaths", "Times that the actor ended while it was needed.", "actor")
        for name in sorted({state.name for state in states} | incidents.deaths.keys()):
            deaths.add_metric([self._model_name, name], incidents.deaths[name])
        yield deaths
        yield self._single("trillm_requests_replayed", "Sequences that went on elsewhere.", incidents.replays)
        yield self._single(
            "trillm_requests_quarantined", "Sequences tried alone after several deaths.", incidents.quarantined
        )
        yield self._single(
            "trillm_requests_condemned", "Sequences ended as the cause of several deaths.", incidents.condemned
        )
        timeouts = self._counter("trillm_request_timeouts", "Requests that ran out of time.", "limit")
        timeouts.add_metric([self._model_name, "deadline"], incidents.deadlines)
        timeouts.add_metric([self._model_name, "queue"], incidents.queue_timeouts)
        yield timeouts

    def _gauge(self, name: str, text: str, *more: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(name, text, labels=["model_name", "actor", *more])

    def _counter(self, name: str, text: str, label: str) -> CounterMetricFamily:
        return CounterMetricFamily(name, text, labels=["model_name", label])

    def _single(self, name: str, text: str, value: int) -> Metric:
        family = CounterMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family


def phase_seconds(state: ActorState) -> float:
    """As of now: the last heartbeat's word, and the time since."""
    return max(0.0, state.phase_seconds + state.heartbeat_age)
