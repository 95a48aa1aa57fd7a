"""The sequences that run: each holds a slot of the runner and KV blocks. Who gets to run, and who has to leave, is the
scheduler's decision; here is how much room there is, and that all of it comes back.
"""

from __future__ import annotations

import heapq
from typing import final

from actors.engine.blocks import BlockPool
from actors.engine.sequence import Sequence, SequenceStatus
from actors.engine.waiting import rank_of
from protocol.ids import Slot


@final
class Residents:
    """Slots from 0 up to `num_slots`, and the block pool, with the sequences that hold them."""

    def __init__(self, pool: BlockPool, num_slots: int, policy: str) -> None:
        self.pool = pool
        self.policy = policy
        self._sequences: list[Sequence] = []
        self._free_slots = list(range(num_slots))  # a heap: low slots first keeps the runner's batch dense
        self._freed_slots: list[Slot] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def by_rank(self) -> list[Sequence]:
        """The best first."""
        return sorted(self._sequences, key=lambda sequence: rank_of(sequence, self.policy))

    def worst(self) -> Sequence:
        return max(self._sequences, key=lambda sequence: rank_of(sequence, self.policy))

    def has_room_for(self, sequence: Sequence) -> bool:
        """Whether there is a slot, and blocks for all its tokens.

        Blocks that the others still need, for the tokens that they have and one more each, do not count as free: who
        is admitted into those is preempted at once.
        """
        pool = self.pool
        promised = sum(pool.blocks_for(s.num_tokens + 1) - len(s.block_table) for s in self._sequences)
        return bool(self._free_slots) and pool.blocks_for(sequence.num_tokens) + promised <= pool.num_free

    def num_tokens_fitting(self, sequence: Sequence) -> int:
        """How many more tokens have room in the sequence's own blocks and the free ones."""
        num_blocks = len(sequence.block_table) + self.pool.num_free
        return num_blocks * self.pool.block_size - sequence.num_computed_tokens

    def admit(self, sequence: Sequence) -> None:
        """Give it a slot; it has no blocks yet."""
        sequence.slot = Slot(heapq.heappop(self._free_slots))
        sequence.status = SequenceStatus.RUNNING
        self._sequences.append(sequence)

    def grow(self, sequence: Sequence, count: int) -> None:
        """Give it the blocks that its next `count` tokens need. Raises ValueError if fewer are free."""
        num_blocks = self.pool.blocks_for(sequence.num_computed_tokens + count)
        sequence.block_table += self.pool.allocate(max(0, num_blocks - len(sequence.block_table)))

    def dismiss(self, sequence: Sequence) -> None:
        """Take slot and blocks from it; its status is for the caller to set."""
        assert sequence.slot is not None
        self._sequences.remove(sequence)
        self.pool.free(sequence.block_table)
        sequence.block_table = []
        heapq.heappush(self._free_slots, sequence.slot)
        self._freed_slots.append(sequence.slot)
        sequence.slot = None

    def take_freed_slots(self) -> list[Slot]:
        """The slots that were given up since the last call: the runner has to hear of each once."""
        freed, self._freed_slots = self._freed_slots, []
        return freed

    def __repr__(self) -> str:
        return f"<Residents {len(self)} running, {len(self._free_slots)} slots free, {self.pool!r}>"
