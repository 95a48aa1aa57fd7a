"""What went wrong and was put right, or not: counted by app/engine_client.py, told by app/metrics.py."""

from __future__ import annotations

from collections import Counter

import attrs


@attrs.define
class Incidents:
    """Since this server started."""

    deaths: Counter[str] = attrs.field(factory=Counter)
    """Ends of actors, by name."""
    replays: int = 0
    """Sequences that were handed to another incarnation, to go on there."""
    quarantined: int = 0
    """Sequences that were tried alone, because several engines in a row had died under them."""
    condemned: int = 0
    """Sequences that were taken for the cause of those deaths, and ended."""
    deadlines: int = 0
    """Requests that were not finished within their time."""
    queue_timeouts: int = 0
    """Requests that had no first token within --max-queue-time."""
