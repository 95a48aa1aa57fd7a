"""What a proxy of trillm tells of itself and of its servers, in its metrics. Pure; used by
app/commands/status_reading.py."""

from __future__ import annotations

import msgspec


class ProxiedServer(msgspec.Struct, frozen=True, kw_only=True):
    """One behind it."""

    url: str
    role: str
    """"prefill" or "decode"."""
    in_flight: int = 0
    """Requests that it is at."""
    rests: bool = False
    """It is not asked for a while, since it has failed or is too busy."""


class ProxyServer(msgspec.Struct, frozen=True, kw_only=True):
    """`trillm proxy`."""

    object: str = "proxy"
    ready: bool
    reason: str
    models: list[str]
    version: str = ""
    servers: list[ProxiedServer]
    answers: dict[str, int]
    """How many were given, by their way (app/proxy/counts.py)."""


def proxy_of(text: str, *, ready: bool, reason: str, models: list[str]) -> ProxyServer | None:
    """Out of metrics as Prometheus reads them. None for what are not those of a proxy."""
    from prometheus_client.parser import text_string_to_metric_families

    in_flight: dict[tuple[str, str], int] = {}
    resting: set[tuple[str, str]] = set()
    answers: dict[str, int] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = sample.labels
                one = labels.get("role", ""), labels.get("server", "")
                match sample.name:
                    case "trillm:proxy_answers_total":
                        answers[labels.get("way", "")] = int(sample.value)
                    case "trillm:proxy_requests_in_flight":
                        in_flight[one] = int(sample.value)
                    case "trillm:proxy_server_rests" if sample.value:
                        resting.add(one)
    except (ValueError, OverflowError):  # no metrics, or no number
        return None
    if not answers:
        return None
    servers = [
        ProxiedServer(url=url, role=role, in_flight=number, rests=(role, url) in resting)
        for (role, url), number in in_flight.items()
    ]
    return ProxyServer(ready=ready, reason=reason, models=models, servers=servers, answers=answers)
