"""Which ranks are on this host, which of them have died, and who has failed with us. Used by the groups to name the
rank that is lost, which torch's errors do not.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import final

import msgspec
from torch.distributed import Store

ANSWER_SECONDS = 1.0
"""For the others to notice that a rank is lost, once this one has: ranks that wait for each other give up together."""
LOOK_SECONDS = 0.05


class Rank(msgspec.Struct, frozen=True):
    """What each tells the others of itself."""

    host: str
    """Kernel, namespaces of processes and network, and user: ranks for which they are the same can share memory and
    watch each other."""
    pid: int
    shared_bytes: int
    """Of the memory for a group of two, which differs between versions; 0 where there are no kernels."""


@final
class Presence:
    """Of all ranks of the world, by their numbers. Close it at the end."""

    def __init__(self, store: Store, rank: int, ranks: Sequence[Rank]) -> None:
        self._store = store
        self._rank = rank
        self._ranks = ranks
        self._pidfds = {
            number: os.pidfd_open(other.pid)
            for number, other in enumerate(ranks)
            if number != rank and other.host == ranks[rank].host
        }

    def share_memory(self, ranks: Collection[int]) -> bool:
        """Whether these ranks can, and all know that they can."""
        here = self._ranks[self._rank]
        return here.shared_bytes > 0 and all(
            self._ranks[rank].host == here.host and self._ranks[rank].shared_bytes == here.shared_bytes
            for rank in ranks
        )

    def pidfd(self, rank: int) -> int:
        """A descriptor that is readable once that rank has died; -1 for this rank, and for those of other hosts."""
        return self._pidfds.get(rank, -1)

    def lost(self, ranks: Collection[int]) -> tuple[int | None, str]:
        """To be asked when a call has failed: which of its ranks is to blame, if that can be known, and what it did."""
        others = [rank for rank in ranks if rank != self._rank]
        failed: set[int] = set()
        # In a thread of its own, since torch waits without end for a store whose keeper hangs.
        asking = threading.Thread(target=self._ask, args=(others, failed), daemon=True)
        asking.start()
        asking.join(2 * ANSWER_SECONDS)
        missing = [rank for rank in others if rank not in failed]  # the first rank keeps the store, and comes first
        dead = [rank for rank in missing if self._is_dead(rank)]
        if dead:
            return dead[0], "has died"
        return (missing[0], "has not come in time") if missing else (None, "is gone or has not come in time")

    def close(self) -> None:
        for descriptor in self._pidfds.values():
            os.close(descriptor)
        self._pidfds.clear()

    def _ask(self, ranks: Collection[int], failed: set[int]) -> None:
        """Say that this rank has failed, and note which others have, until all have or some time has passed."""
        waiting = threading.Event()
        with contextlib.suppress(RuntimeError):  # the keeper of the store is gone
            self._store.set(f"failed {self._rank}", "")
            for _ in range(round(ANSWER_SECONDS / LOOK_SECONDS)):
                failed.update(rank for rank in ranks if self._store.check([f"failed {rank}"]))
                if all(rank in failed or self._is_dead(rank) for rank in ranks):
                    break
                waiting.wait(LOOK_SECONDS)

    def _is_dead(self, rank: int) -> bool:
        return rank in self._pidfds and _is_readable(self._pidfds[rank])


def open_presence(store: Store, rank: int, world: int, shared_bytes: int) -> Presence:
    """Tell the others of this rank, and wait for all. Raises torch's DistStoreError when one does not come within the
    store's time, OSError when one has died meanwhile."""
    store.set(f"rank {rank}", msgspec.json.encode(Rank(_host(), os.getpid(), shared_bytes)).decode())
    ranks = [msgspec.json.decode(store.get(f"rank {number}"), type=Rank) for number in range(world)]
    return Presence(store, rank, ranks)


def _host() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = [Path(f"/proc/self/ns/{kind}").readlink() for kind in ("pid", "net")]
    return f"{boot} {spaces[0]} {spaces[1]} {os.getuid()}"


def _is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
