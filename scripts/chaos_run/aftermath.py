"""What must be as before once all clients have gone: blocks, requests, descriptors, threads, memory, processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import attrs
import trio

from scripts.chaos_run import processes
from scripts.chaos_run.exchange import BrokenAnswerError
from scripts.chaos_run.processes import Footprint
from scripts.chaos_run.served import Served

SETTLE_SECONDS = 40.0
"""How long it may take: a stopped actor may still have to be noticed, worker threads leave after 10 s."""
RSS_GROWTH_BYTES = 64 * 2**20
"""Of server and output handler each. Many streams at once need more than the one of the baseline, once."""
MORE_DESCRIPTORS = 4
MORE_THREADS = 4
"""Worker threads come and go."""


@attrs.frozen
class Baseline:
    """As it was before."""

    footprints: Mapping[str, Footprint]
    descriptors: Mapping[str, int]
    """Of the server, by kind."""
    shared_memory: frozenset[str]

    @classmethod
    def of(cls, served: Served) -> Baseline:
        kinds = processes.descriptor_kinds(served.pid)
        return cls(processes.footprints(served.pid), kinds, frozenset(processes.shared_memory()))


async def settle(served: Served, baseline: Baseline, seconds: float = SETTLE_SECONDS) -> list[str]:
    """What is still not as before after that time; returns at once when all is."""
    deadline = trio.current_time() + seconds
    while complaints := await differences(served, baseline):
        served.check_alive()
        if trio.current_time() > deadline:
            more = processes.descriptor_kinds(served.pid) - Counter(baseline.descriptors)
            return [*complaints, f"the server's additional descriptors: {dict(more)}"] if more else complaints
        await trio.sleep(0.5)
    return []


async def differences(served: Served, baseline: Baseline) -> list[str]:
    try:
        gauges, frames_in_use = await served.gauges(), await served.frames_in_use()
    except (BrokenAnswerError, OSError) as error:
        return [f"/metrics does not answer: {error}"]
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "requests_live", "kv_leases")
    wrong = [f"{name} is {gauges[name]:g}" for name in names if gauges.get(name, 0) != 0]
    if frames_in_use:
        wrong.append(f"{frames_in_use:g} frames of KV connectors are still in use")
    if gauges["ready"] != 1:
        wrong.append("it is not ready")
    if dead := processes.zombies(served.pid):
        wrong.append(f"zombies: {dead}")
    now = processes.footprints(served.pid)
    for name, before in baseline.footprints.items():
        wrong += growths(name, before, now[name]) if name in now else [f"{name} is not there"]
    return wrong


def growths(name: str, before: Footprint, now: Footprint) -> list[str]:
    wrong = []
    if now.less_children() > before.less_children() + MORE_DESCRIPTORS:
        wrong.append(f"{name} has {now.descriptors} descriptors, and had {before.descriptors}")
    if now.threads > before.threads + MORE_THREADS:
        wrong.append(f"{name} has {now.threads} threads, and had {before.threads}")
    if name in ("server", "output-0") and now.rss_bytes > before.rss_bytes + RSS_GROWTH_BYTES:
        wrong.append(f"{name} takes {now.rss_bytes / 2**20:.0f} MiB, and took {before.rss_bytes / 2**20:.0f}")
    return wrong


async def leave(served: Served, baseline: Baseline) -> list[str]:
    """SIGTERM, and what is wrong with how it goes and with what it leaves behind."""
    left = list(processes.actors(served.pid).values())
    status = await served.stop()
    wrong = [f"its exit status is {status}"] if status != 0 else []
    if alive := [pid for pid in left if processes.is_alive(pid)]:
        wrong.append(f"actors outlived it: {alive}")
    if rest := [path.name for path in served.runtime.iterdir() if path != served.log]:
        wrong.append(f"left in its runtime directory: {rest}")
    if shared := processes.shared_memory() - baseline.shared_memory:
        wrong.append(f"left in /dev/shm: {sorted(shared)}")
    return wrong
