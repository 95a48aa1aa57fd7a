"""The dummy runner's KV pool: the states that it computed in each block, and their bytes in a connector's frames."""

from __future__ import annotations

import struct
from typing import final

from gpu.fake_slots import PlanError
from gpu.kv_frames import KvFrames
from protocol.step import KvCopy

STATE_BYTES = 8
"""Little-endian."""


@final
class FakeBlocks:
    """A state that was never computed is 0, which no hash is but by an unlikely chance."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._frame = struct.Struct(f"<{block_size}Q")
        self._states: dict[int, list[int]] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._states

    def write(self, position: int, block_table: list[int], state: int) -> None:
        index, offset = divmod(position, self._block_size)
        self._states.setdefault(block_table[index], [0] * self._block_size)[offset] = state

    def state_at(self, position: int, block_table: list[int]) -> int:
        index, offset = divmod(position, self._block_size)
        return self._states[block_table[index]][offset]

    def clear(self) -> None:
        self._states.clear()

    def save(self, copies: list[KvCopy], frames: KvFrames) -> None:
        """Raises PlanError for what is not to be copied."""
        _check_once([copy.frame for copy in copies], "frame", "saved to", frames.num_frames)
        for copy in copies:
            states = self._states.get(copy.block, [])
            if not states or 0 in states:
                raise PlanError(f"block {copy.block} is saved, but is not computed whole: {states}")
            self._frame.pack_into(frames.piece(copy.frame), 0, *states)

    def load(self, copies: list[KvCopy], frames: KvFrames) -> None:
        """Raises PlanError for what is not to be copied."""
        _check_once([copy.block for copy in copies], "block", "loaded", self._num_blocks)
        for copy in copies:
            if not 0 <= copy.frame < frames.num_frames:
                raise PlanError(f"frame {copy.frame} is none of {frames.num_frames}")
            states = list(self._frame.unpack_from(frames.piece(copy.frame)))
            if 0 in states:
                raise PlanError(f"frame {copy.frame} is loaded, but holds no whole block: {states}")
            self._states[copy.block] = states


def _check_once(places: list[int], what: str, done: str, count: int) -> None:
    for place in places:
        if not 0 <= place < count:
            raise PlanError(f"{what} {place} is none of {count}")
    if len(set(places)) < len(places):
        raise PlanError(f"a {what} is {done} twice: {places}")
