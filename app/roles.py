"""Which engines compute prompts and which go on after the first token, where they are divided so (--prefill-engines,
--decode-engines). Pure; used by app/dispatch.py and app/replays.py.

A division of labour, not of rights: where none of one kind serves, the other kind does its work.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import final

import msgspec
from attrs import frozen

from app.journal import Entry
from protocol.ids import EngineIndex
from protocol.kv import KvParams


@final
@frozen
class Roles:
    """The first `num_prefill` engines compute prompts, all others go on. 0: each does everything."""

    num_prefill: int = 0

    def computes_prompts(self, index: EngineIndex) -> bool:
        return index < self.num_prefill

    def divide(
        self, entries: Iterable[Entry], among: Collection[EngineIndex]
    ) -> Iterator[tuple[list[Entry], Collection[EngineIndex]]]:
        """What is to be sent, by those of these engines that it goes to as long as they take it."""
        entries = list(entries)
        if self.num_prefill == 0 or not among:
            yield entries, among
            return
        for has_prompt in (False, True):
            group = [entry for entry in entries if _has_prompt(entry) is has_prompt]
            if group:
                yield group, [index for index in among if self.computes_prompts(index) is not has_prompt] or among

    def waits(self, entry: Entry, among: Collection[EngineIndex], serving: Collection[EngineIndex]) -> bool:
        """Whether it is to go on in none of these engines, but in another one that serves and is heard soon."""
        if self.num_prefill == 0 or not _has_prompt(entry):
            return False
        return all(map(self.computes_prompts, among)) and not all(map(self.computes_prompts, serving))

    def kv_params(self, entry: Entry, index: EngineIndex, serving: Collection[EngineIndex]) -> KvParams | None:
        """What this engine is told of where the request's KV comes from and goes to. `serving`: those that could go on
        with it."""
        asked = entry.prompt.kv
        if entry.kv_ticket:
            return KvParams(entry.kv_ticket)
        if entry.token_ids:
            # What it was to load was loaded when its first token was computed, and its ticket may be used up.
            return asked and msgspec.structs.replace(asked, must_load=False)
        goes_on = entry.prompt.pooling is None and entry.prompt.sampling_params.max_tokens > 1
        is_for_others = asked is not None and asked.exports
        if not goes_on or is_for_others or not self.computes_prompts(index):
            return asked
        if all(map(self.computes_prompts, serving)):
            return asked
        return msgspec.structs.replace(asked or KvParams(), hands_over=True)


def _has_prompt(entry: Entry) -> bool:
    """Whether its prompt was computed, here or by another server, which gave it a ticket."""
    return bool(entry.token_ids) or (entry.prompt.kv is not None and bool(entry.prompt.kv.ticket))
