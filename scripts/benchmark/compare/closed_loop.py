"""Requests of which always the same number is under way: when one has ended, the next is sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import islice

from scripts.benchmark.client import Call, Client


def run_closed_loop(
    calls: Sequence[Call], concurrency: int, seconds: float, half_way: Callable[[], None] | None = None
) -> None:
    """Every call either ends or has its failure told afterwards; those not ended after `seconds` have failed.

    `half_way` is called once, while calls are running, when half of them have ended.
    """
    client, waiting, deadline = Client(bears_failures=True), iter(calls), time.perf_counter() + seconds
    num_sent = 0
    try:
        while True:
            for call in islice(waiting, concurrency - client.num_running):
                client.start(call)
                num_sent += 1
            if not client.num_running and num_sent == len(calls):
                return
            if half_way is not None and 2 * (num_sent - client.num_running) >= len(calls):
                half_way()
                half_way = None
            running = client.num_running
            if running and not client.run(_fewer_than(client, running), deadline - time.perf_counter()):
                client.finish(0.0)
                for call in waiting:
                    call.failure = f"not sent within {seconds:.0f} s"
                return
    finally:
        client.close()


def _fewer_than(client: Client, running: int) -> Callable[[], bool]:
    return lambda: client.num_running < running
