"""What other API servers have given the engines to do, as far as one server can know it: engines say how many sequences
they have, and those that are not ours are theirs. Pure; used by app/dispatch.py and app/engine_client.py.

What an engine says comes with each step that computes something for us, else once a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from app.journal import MOST_AHEAD, Entry
from protocol.engine_stats import EngineStats
from protocol.ids import EngineIndex


def sequences_of_others(
    live: Iterable[Entry], stats_of_each: Mapping[EngineIndex, EngineStats]
) -> Counter[EngineIndex]:
    """In each engine. `live`: our own."""
    ours = Counter(entry.engine[0] for entry in live if entry.engine is not None)
    others: Counter[EngineIndex] = Counter()
    for index, stats in stats_of_each.items():
        others[index] = max(0, stats.num_requests_running + stats.num_requests_waiting - ours[index])
    return others


def loads_of_others(sequences: Counter[EngineIndex]) -> Counter[EngineIndex]:
    """In tokens: of each sequence as many as one counts for what it may still generate."""
    return Counter({index: number * MOST_AHEAD for index, number in sequences.items()})
