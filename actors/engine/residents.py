"""The sequences that run: each holds a slot of the runner and KV blocks. Who gets to run, and who has to leave, is the
scheduler's decision; here is how much room there is, and that all of it comes back.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterator
from typing import final

from actors.engine.adapter_places import AdapterPlaces
from actors.engine.blocks import BlockPool
from actors.engine.kv_side import KvSide
from actors.engine.sequence import Sequence, SequenceStatus
from actors.engine.waiting import Rank, rank_of
from protocol.ids import Slot
from protocol.kv import BlockHash


@final
class Residents:
    """Slots from 0 up to `num_slots`, the block pool, the places of adapters and the way to the connector, with the
    sequences that hold them."""

    def __init__(self, pool: BlockPool, num_slots: int, policy: str, adapters: AdapterPlaces, kv: KvSide) -> None:
        self.pool = pool
        self.adapters = adapters
        self.kv = kv
        self.policy = policy
        self._ranks: list[Rank] = []
        self._sequences: list[Sequence] = []
        """In the order of their ranks, which do not change while they run."""
        self._free_slots = list(range(num_slots))  # a heap: low slots first keeps the runner's batch dense
        self._freed_slots: list[Slot] = []
        self.num_queried_tokens = 0
        """Of sequences that started: looked for in published blocks, and found there."""
        self.num_found_tokens = 0

    @property
    def num_free_slots(self) -> int:
        """How many more may run."""
        return len(self._free_slots)

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        """The best first."""
        return iter(self._sequences)

    def worst(self) -> Sequence:
        return self._sequences[-1]

    def has_room_for(self, sequence: Sequence, found: list[int]) -> bool:
        """Whether there is a slot, and blocks for all its tokens beside those that were found.

        Blocks that the others still need, for the tokens that they have and one more each, do not count as free: who
        is admitted into those is preempted at once.
        """
        if not self._free_slots:
            return False
        pool = self.pool
        promised = sum(
            max(0, pool.blocks_for(s.num_tokens + s.num_pending_tokens + 1) - len(s.block_table))
            for s in self._sequences
        )
        wanted = pool.blocks_for(sequence.num_tokens) - len(found) + pool.num_idle(found)
        return wanted + promised <= pool.num_free

    def num_tokens_fitting(self, sequence: Sequence) -> int:
        """How many more tokens have room in the sequence's own blocks and the free ones."""
        num_blocks = len(sequence.block_table) + self.pool.num_free
        return num_blocks * self.pool.block_size - sequence.num_planned_tokens

    def num_tokens_to_spare(self, sequence: Sequence) -> int:
        """The same, without a free block for each sequence that runs: these may need it in the next step."""
        num_blocks = len(sequence.block_table) + max(0, self.pool.num_free - len(self))
        return num_blocks * self.pool.block_size - sequence.num_planned_tokens

    def may_start(self, sequence: Sequence) -> bool:
        """Whether its adapter is ready, and it is settled what comes from the connector for it."""
        return self.adapters.is_ready(sequence.lora_id) and self.kv.is_settled(sequence)

    def chain_of(self, sequence: Sequence) -> list[BlockHash]:
        """Of the full blocks with which it could start. Never with its last token, which has to be computed for the
        sake of what comes after it."""
        if sequence.block_hashes is None or sequence.needs_every_position:
            return []
        return sequence.block_hashes.up_to(sequence.token_ids, sequence.num_tokens - 1)

    def find_prefix(self, sequence: Sequence) -> list[int]:
        """Published blocks with the sequence's first tokens."""
        return self.pool.find(self.chain_of(sequence))

    def admit(self, sequence: Sequence, found: list[int], num_loads: int = 0) -> None:
        """Give it a slot and, to begin with, the blocks that were found, and so many more that are to be loaded before
        its first row. Its adapter is ready."""
        self.adapters.start(sequence.lora_id)
        self.pool.share(found)
        num_found_tokens, num_loaded_tokens = (count * self.pool.block_size for count in (len(found), num_loads))
        sequence.begin_with([*found, *self.pool.allocate(num_loads)], len(found), num_found_tokens)
        if sequence.status is SequenceStatus.WAITING and sequence.block_hashes is not None:
            sequence.num_cached_tokens = min(num_found_tokens + num_loaded_tokens, sequence.num_prompt_tokens)
            self.num_queried_tokens += sequence.num_tokens
            self.num_found_tokens += num_found_tokens
            self.kv.finds.num_found_tokens += num_loaded_tokens
        sequence.slot = Slot(heapq.heappop(self._free_slots))
        sequence.status = SequenceStatus.RUNNING
        rank = rank_of(sequence, self.policy)
        index = bisect.bisect(self._ranks, rank)
        self._ranks.insert(index, rank)
        self._sequences.insert(index, sequence)

    def grow(self, sequence: Sequence, count: int) -> None:
        """Give it the blocks that its next `count` tokens need. Raises ValueError if fewer are free."""
        missing = self.pool.blocks_for(sequence.num_planned_tokens + count) - len(sequence.block_table)
        if missing > 0:
            sequence.block_table = sequence.block_table + self.pool.allocate(missing)

    def publish_full_blocks(self, sequence: Sequence) -> None:
        """Let others find the blocks that the sequence has filled since the last time."""
        num_tokens = min(sequence.num_computed_tokens, sequence.num_tokens)  # an end among drafts leaves some over
        first, end = sequence.num_published_blocks, num_tokens // self.pool.block_size
        if end > first and sequence.block_hashes is not None:
            hashes = sequence.block_hashes.up_to(sequence.token_ids, num_tokens)
            for block, block_hash in zip(sequence.block_table[first:end], hashes[first:end], strict=True):
                self.pool.publish(block, block_hash)
                self.kv.note_published(block_hash)
            sequence.num_published_blocks = end

    def dismiss(self, sequence: Sequence) -> None:
        """Take slot and blocks from it; its status is for the caller to set."""
        assert sequence.slot is not None
        index = bisect.bisect_left(self._ranks, rank_of(sequence, self.policy))
        assert self._sequences[index] is sequence, f"{sequence!r} is not where its rank says"
        del self._ranks[index]
        del self._sequences[index]
        self.adapters.stop(sequence.lora_id)
        self.pool.free(sequence.block_table)
        sequence.forget_computed()
        heapq.heappush(self._free_slots, sequence.slot)
        if not self.kv.finds.stop(sequence):  # else the runner has not heard of it
            self._freed_slots.append(sequence.slot)
        sequence.slot = None

    def take_freed_slots(self) -> list[Slot]:
        """The slots that were given up since the last call: the runner has to hear of each once."""
        freed, self._freed_slots = self._freed_slots, []
        return freed

    def __repr__(self) -> str:
        return f"<Residents {len(self)} running, {len(self._free_slots)} slots free, {self.pool!r}>"
