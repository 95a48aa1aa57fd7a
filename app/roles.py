"""Which engines compute prompts and which go on after the first token, where they are divided so (--prefill-engines,
--decode-engines). Pure; used by app/dispatch.py.

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
        for is_new in (True, False):
            group = [entry for entry in entries if is_new is not bool(entry.token_ids)]
            if group:
                yield group, [index for index in among if self.computes_prompts(index) is is_new] or among

    def kv_params(self, entry: Entry, index: EngineIndex, serving: Collection[EngineIndex]) -> KvParams | None:
        """What this engine is told of where the request's KV comes from and goes to. `serving`: those that could go on
        with it."""
        asked = entry.prompt.kv
        if entry.kv_ticket:
            return KvParams(entry.kv_ticket, exports=asked is not None and asked.exports)
        goes_on = entry.prompt.pooling is None and entry.prompt.sampling_params.max_tokens > 1
        is_for_others = asked is not None and asked.exports
        if entry.token_ids and asked is not None and asked.must_load:
            # What it was to load was loaded when its first token was computed, and its ticket may be used up.
            return msgspec.structs.replace(asked, must_load=False)
        if entry.token_ids or not goes_on or is_for_others or not self.computes_prompts(index):
            return asked
        if all(self.computes_prompts(other) for other in serving):
            return asked
        ticket, must_load = (b"", False) if asked is None else (asked.ticket, asked.must_load)
        return KvParams(ticket, hands_over=True, must_load=must_load)
