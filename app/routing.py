"""Which of several engines a request goes to: where it is computed soonest, as far as an API server can know.

An engine's load is what it has still to compute, in tokens. From it is taken what the engine need not compute of this
prompt, because it was sent the same beginning before: a conversation goes on where its blocks are, unless that engine
is busier than the others by more than that, or by more than MOST_CREDIT tokens. So no engine's load is ever above
another's by more than MOST_CREDIT and one request. Equal ones take turns.

Pure and deterministic. Used by app/engine_client.py.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Collection
from typing import final

from app.engine import Prompt
from protocol.ids import EngineIndex

MOST_CREDIT = 2048
"""Tokens. As much as 16 sequences weigh that are being generated (app/journal.py)."""
MOST_BLOCKS = 65_536
"""Blocks that are remembered of an engine, if it has as many: some 8 MiB."""
MOST_PREFIX_BLOCKS = 4096
"""Blocks of one prompt that are looked for: what comes after them changes no decision, and takes time."""


def prefix_chain(prompt: Prompt, block_size: int) -> list[int]:
    """One hash for each whole block of the prompt, over its tokens and all before them, as engines name theirs
    (actors/engine/block_hashes.py): apart for each salt and adapter. Python's own hash, since it never leaves this
    process, and one that is wrong costs time only."""
    tokens = memoryview(array("i", prompt.prompt_token_ids[: MOST_PREFIX_BLOCKS * block_size])).cast("B")
    size = block_size * array("i").itemsize
    parent = hash((prompt.cache_salt, None if prompt.lora is None else prompt.lora.lora_id))
    chain = []
    for start in range(0, len(tokens) - size + 1, size):
        parent = hash((parent, tokens[start : start + size].tobytes()))
        chain.append(parent)
    return chain


@final
class SentPrefixes:
    """What one engine was sent: its own cache as seen from here, with as many blocks, of which the ones that were not
    used for longest go first."""

    def __init__(self, num_blocks: int) -> None:
        self._room = min(num_blocks, MOST_BLOCKS)
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def count(self, chain: list[int]) -> int:
        """Blocks at the beginning of this chain that are there."""
        for number, block in enumerate(chain):
            if block not in self._blocks:
                return number
        return len(chain)

    def note(self, chain: list[int]) -> None:
        for block in reversed(chain):  # the first ones last, as they are of use to most
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._room:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        self._blocks.clear()


@final
class Router:
    """Knows what each engine was sent since it began."""

    def __init__(self, *, has_prefix_cache: bool = True) -> None:
        """`has_prefix_cache`: whether engines find again what they have computed."""
        self._has_prefix_cache = has_prefix_cache
        self._sent: dict[EngineIndex, SentPrefixes] = {}
        self._block_size = 0
        self._turns: Counter[EngineIndex] = Counter()
        self._turn = 0
        self.predicted: Counter[EngineIndex] = Counter()
        """Prompt tokens that were expected to be in the cache of the engine that was chosen. What was is told by
        EngineStats.prefix_cache_hits."""

    def attach(self, index: EngineIndex, num_blocks: int, block_size: int) -> None:
        """A new engine, with an empty cache of so many blocks."""
        self._sent[index] = SentPrefixes(num_blocks if self._has_prefix_cache else 0)
        self._block_size = block_size

    def forget(self) -> None:
        """The engines' caches have been emptied."""
        for sent in self._sent.values():
            sent.clear()

    def choose(
        self, prompt: Prompt, loads: Counter[EngineIndex], among: Collection[EngineIndex]
    ) -> tuple[EngineIndex, int]:
        """One of `among`, of which there is at least one, and how many of the prompt's tokens it should have cached.
        `loads`: in tokens."""
        chain: list[int] = []
        if self._has_prefix_cache and len(self._sent) > 1:
            chain = prefix_chain(prompt, self._block_size)
        cached = {index: self._cached(index, chain, prompt) for index in among}
        chosen = min(among, key=lambda i: (loads[i] - min(cached[i], MOST_CREDIT), loads[i], self._turns[i], i))
        self._turn += 1
        self._turns[chosen] = self._turn
        self.predicted[chosen] += cached[chosen]
        if chain:
            self._sent[chosen].note(chain)
        return chosen, cached[chosen]

    def _cached(self, index: EngineIndex, chain: list[int], prompt: Prompt) -> int:
        if not chain or index not in self._sent:
            return 0
        blocks = self._sent[index].count(chain)
        return min(blocks * self._block_size, len(prompt.prompt_token_ids) - 1)  # the last token is always computed


@final
class Placement:
    """Where the prompts of one call go: choices of the same prompt to the same engine, since they share its blocks."""

    def __init__(self, router: Router, loads: Counter[EngineIndex], among: Collection[EngineIndex]) -> None:
        """`loads` goes on counting what is placed."""
        self._router = router
        self._loads = loads
        self._among = set(among)
        self._last: tuple[Prompt, EngineIndex, int] | None = None

    def place(self, prompt: Prompt) -> tuple[EngineIndex, int] | None:
        """An engine, and how many of the prompt's tokens it should have cached; None if none is left."""
        if not self._among:
            return None
        if self._last is not None and self._last[1] in self._among and is_same_prompt(prompt, self._last[0]):
            return self._last[1], self._last[2]
        index, cached = self._router.choose(prompt, self._loads, self._among)
        self._last = (prompt, index, max(cached, len(prompt.prompt_token_ids) - 1))
        return index, cached

    def count(self, index: EngineIndex, load: int) -> None:
        """What was placed there weighs so much."""
        self._loads[index] += load

    def drop(self, index: EngineIndex) -> None:
        """It has gone down."""
        self._among.discard(index)


def is_same_prompt(one: Prompt, other: Prompt) -> bool:
    """Whether they share every block."""
    return (
        one.prompt_token_ids == other.prompt_token_ids and one.cache_salt == other.cache_salt and one.lora == other.lora
    )
