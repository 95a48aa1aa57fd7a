"""The block pool loses no block, gives none to two writers, and finds only what really lies there."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.engine.block_hashes import BlockHash
from actors.engine.blocks import BlockPool


def names(text: str) -> list[BlockHash]:
    """A chain with one hash per letter."""
    return [BlockHash(text[: end + 1].encode()) for end in range(len(text))]


def publish(pool: BlockPool, blocks: list[int], text: str) -> None:
    for block, name in zip(blocks, names(text), strict=True):
        pool.publish(block, name)


def test_allocating_more_than_is_free_takes_nothing():
    pool = BlockPool(3, 16)
    held = pool.allocate(2)
    with pytest.raises(ValueError, match="cannot allocate 2 blocks: 1 of 3 are free"):
        pool.allocate(2)
    assert pool.num_free == 1
    pool.free(held)
    assert pool.num_free == 3


def test_freeing_twice_is_an_error():
    pool = BlockPool(3, 16)
    blocks = pool.allocate(1)
    pool.free(blocks)
    with pytest.raises(ValueError, match="not allocated"):
        pool.free(blocks)


@pytest.mark.parametrize("block", [-1, 3])
def test_freeing_what_is_no_block_is_an_error(block: int):
    pool = BlockPool(3, 16)
    pool.allocate(3)
    with pytest.raises(ValueError, match="not allocated"):
        pool.free([block])


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_blocks_for_rounds_up(num_tokens: int, num_blocks: int):
    assert BlockPool(1, 16).blocks_for(num_tokens) == num_blocks


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 16), (4, 0), (-1, 16)])
def test_a_pool_without_room_is_an_error(num_blocks: int, block_size: int):
    with pytest.raises(ValueError, match="needs blocks and positions"):
        BlockPool(num_blocks, block_size)


def test_published_blocks_are_found_while_owned_and_afterwards():
    pool = BlockPool(8, 16)
    blocks = pool.allocate(3)
    publish(pool, blocks, "abc")
    assert pool.find(names("abx")) == blocks[:2]
    pool.free(blocks)
    assert pool.num_free == 8
    assert pool.find(names("abcd")) == blocks
    assert pool.find(names("xabc")) == []


def test_a_shared_block_is_free_when_the_last_owner_has_left():
    pool = BlockPool(2, 16)
    blocks = pool.allocate(2)
    publish(pool, blocks, "ab")
    pool.share(pool.find(names("a")))
    pool.free(blocks)
    assert pool.num_free == 1
    assert pool.num_idle(blocks) == 1
    pool.free(blocks[:1])
    assert pool.num_free == 2


def test_blank_blocks_go_first_then_the_end_of_what_was_freed_longest_ago():
    pool = BlockPool(6, 16)
    old, new = pool.allocate(2), pool.allocate(3)
    publish(pool, old, "ab")
    publish(pool, new, "xyz")
    pool.free(old)
    pool.free(new)
    pool.allocate(1)
    assert pool.find(names("ab")) == old
    pool.allocate(1)
    assert pool.find(names("ab")) == old[:1]
    pool.allocate(2)
    assert pool.find(names("ab")) == []
    assert pool.find(names("xyz")) == new[:2]


def test_what_is_found_again_is_evicted_later():
    pool = BlockPool(2, 16)
    first, second = pool.allocate(1), pool.allocate(1)
    publish(pool, first, "a")
    publish(pool, second, "x")
    pool.free(first)
    pool.free(second)
    pool.share(first)
    pool.free(first)
    assert pool.allocate(1) == second
    assert pool.find(names("a")) == first


def test_of_two_blocks_with_the_same_contents_the_first_is_found():
    pool = BlockPool(2, 16)
    first, second = pool.allocate(1), pool.allocate(1)
    publish(pool, first, "a")
    publish(pool, second, "a")
    assert pool.find(names("a")) == first
    pool.free(second)
    assert pool.allocate(1) == second


def test_retracted_blocks_are_not_found_again():
    pool = BlockPool(2, 16)
    blocks = pool.allocate(2)
    publish(pool, blocks, "ab")
    pool.retract(blocks[:1])
    assert pool.find(names("ab")) == []
    pool.free(blocks)
    assert pool.num_free == 2


class Owners(RuleBasedStateMachine):
    """Owners take, fill, share and give back blocks in any order; `written` knows what lies in each."""

    @initialize(num_blocks=st.integers(1, 12))
    def make(self, num_blocks: int):
        self.pool = BlockPool(num_blocks, 4)
        self.held: list[list[int]] = []
        self.written: dict[int, BlockHash] = {}

    @rule(text=st.text("ab", max_size=5), extra=st.integers(0, 4))
    def take(self, text: str, extra: int):
        """A sequence with this text: what is there is shared, the rest is written, and perhaps more than is full."""
        found = self.pool.find(names(text))
        assert [self.written[block] for block in found] == names(text)[: len(found)]
        count = len(text) - len(found) + extra
        if count + self.pool.num_idle(found) > self.pool.num_free:
            return
        self.pool.share(found)
        new = self.pool.allocate(count)
        for block in new:
            self.written.pop(block, None)
        blocks = found + new
        for block, name in [*zip(blocks, names(text), strict=False)][len(found) :]:
            self.written[block] = name
            self.pool.publish(block, name)
        self.held.append(blocks)

    @rule(count=st.integers(0, 12))
    def allocate_too_many(self, count: int):
        with pytest.raises(ValueError):
            self.pool.allocate(self.pool.num_free + 1 + count)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), retract=st.sampled_from([False, False, True]))
    def free(self, data: st.DataObject, retract: bool):
        blocks = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        if retract:
            self.pool.retract(blocks)
        self.pool.free(blocks)

    @invariant()
    def every_block_has_as_many_owners_as_hold_it(self):
        owners = Counter(block for blocks in self.held for block in blocks)
        assert [owners[block] for block in range(self.pool.num_blocks)] == self.pool._num_owners
        assert len(owners) == self.pool.num_used
        free = [*self.pool._blank, *self.pool._idle]
        assert sorted([*free, *owners]) == list(range(self.pool.num_blocks))

    @invariant()
    def names_and_blocks_belong_together(self):
        by_hash = self.pool._by_hash
        assert {block: name for name, block in by_hash.items()} == self.pool._hash_of
        assert set(self.pool._idle) <= set(self.pool._hash_of)
        assert not set(self.pool._blank) & set(self.pool._hash_of)
        assert all(self.written[block] == name for name, block in by_hash.items())


TestOwners = Owners.TestCase
TestOwners.settings = settings(max_examples=40, stateful_step_count=30)
