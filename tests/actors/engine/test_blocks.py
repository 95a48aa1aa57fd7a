"""The block pool gives every block to one owner at a time and loses none."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.engine.blocks import BlockPool


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


class Owners(RuleBasedStateMachine):
    """Owners take and give back blocks in any order."""

    @initialize(num_blocks=st.integers(1, 12))
    def make(self, num_blocks: int):
        self.pool = BlockPool(num_blocks, 4)
        self.held: list[list[int]] = []

    @rule(count=st.integers(0, 12))
    def allocate(self, count: int):
        if count > self.pool.num_free:
            with pytest.raises(ValueError):
                self.pool.allocate(count)
        else:
            self.held.append(self.pool.allocate(count))
            assert len(self.held[-1]) == count

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data: st.DataObject):
        index = data.draw(st.integers(0, len(self.held) - 1))
        self.pool.free(self.held.pop(index))

    @invariant()
    def every_block_has_one_owner_or_none(self):
        owned = [block for blocks in self.held for block in blocks]
        assert len(set(owned)) == len(owned) == self.pool.num_used
        assert set(owned) <= set(range(self.pool.num_blocks))
        assert self.pool.num_free + self.pool.num_used == self.pool.num_blocks


TestOwners = Owners.TestCase
TestOwners.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
