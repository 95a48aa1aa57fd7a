"""The supervisor's view of each actor and what went wrong so far, for Prometheus. Registered by app/metrics.py; reads
everything when it is scraped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from actors.handles import ActorState
from app.engine import EngineClient
from app.metric_families import Families

OF_API_SERVERS = ("api-", "output-")


@final
class ActorCollector:
    """Per actor: up, age of its heartbeat, phase, restarts, deaths. Of the server: what deaths and limits did."""

    def __init__(self, engine: EngineClient, model_name: str) -> None:
        self._engine = engine
        self._model_name = model_name
        self._families = Families({"model_name": model_name})

    def collect(self) -> Iterable[Metric]:
        states, incidents, families = self._engine.actors(), self._engine.incidents, self._families
        up = {state.name: float(state.ready) for state in states}
        yield families.gauges("trillm_actor_up", "1 if the actor serves.", "actor", up)
        age = {state.name: state.heartbeat_age for state in states}
        yield families.gauges("trillm_actor_heartbeat_age_seconds", "Since the actor was last heard of.", "actor", age)
        yield self._phases(states)
        restarts = {state.name: state.restarts for state in states}
        yield families.counters("trillm_actor_restarts", "Times that the actor was started again.", "actor", restarts)
        deaths = {name: incidents.deaths[name] for name in sorted(up.keys() | incidents.deaths.keys())}
        # Of the other API servers and their output handlers it hears only that they were started again.
        deaths |= {name: max(deaths[name], restarts[name]) for name in restarts if name.startswith(OF_API_SERVERS)}
        text = "Times that the actor ended while it was needed."
        yield families.counters("trillm_actor_deaths", text, "actor", deaths)
        yield families.counter("trillm_requests_replayed", "Sequences that went on elsewhere.", incidents.replays)
        yield families.counter(
            "trillm_requests_quarantined", "Sequences tried alone after several deaths.", incidents.quarantined
        )
        yield families.counter(
            "trillm_requests_condemned", "Sequences ended as the cause of several deaths.", incidents.condemned
        )
        timeouts = {"deadline": incidents.deadlines, "queue": incidents.queue_timeouts}
        yield families.counters("trillm_request_timeouts", "Requests that ran out of time.", "limit", timeouts)

    def _phases(self, states: Iterable[ActorState]) -> Metric:
        text = "How long the actor has been in its phase."
        family = GaugeMetricFamily("trillm_actor_phase_seconds", text, labels=["model_name", "actor", "phase"])
        for state in states:
            family.add_metric([self._model_name, state.name, state.phase], phase_seconds(state))
        return family


def phase_seconds(state: ActorState) -> float:
    """As of now: the last heartbeat's word, and the time since."""
    return max(0.0, state.phase_seconds + state.heartbeat_age)
