"""Where one call's outputs wait for its reader: merged, so that a reader who stays away costs one delta per prompt.

Used by app/engine_client.py, which puts in what comes from the output handler.
"""

from __future__ import annotations

from itertools import count
from typing import final

import trio

from protocol.errors import EngineDeadError, TrillmError
from protocol.ids import FIRST_ENGINE, EngineIndex, RequestId
from protocol.messages import RequestOutput
from protocol.timeline import then


def merge(earlier: RequestOutput, later: RequestOutput) -> RequestOutput:
    """Two deltas of one request as one: what piles up while a reader is slow costs one delta's memory, not many."""
    return RequestOutput(
        request_id=earlier.request_id,
        offset=earlier.offset,
        token_ids=earlier.token_ids + later.token_ids,
        text=earlier.text + later.text,
        logprobs=earlier.logprobs if later.logprobs is None else (earlier.logprobs or []) + later.logprobs,
        prompt_logprobs=earlier.prompt_logprobs or later.prompt_logprobs,
        finish_reason=later.finish_reason,
        stop_reason=later.stop_reason,
        error=later.error,
        # Of whoever computed the prompt: who went on after the first token found what that one had computed.
        num_cached_tokens=earlier.num_cached_tokens if earlier.token_ids else later.num_cached_tokens,
        timeline=then(earlier.timeline, later.timeline),
        embedding=later.embedding,
        kv_ticket=later.kv_ticket,
    )


@final
class ActorGeneration:
    """The mailbox of one call of `generate`: at most one merged delta per prompt waits in it."""

    def __init__(self, request_ids: list[RequestId]) -> None:
        self.unfinished = dict(zip(request_ids, count(), strict=False))
        self.has_begun = False
        """Whether any of its prompts has a token, or has ended without one. Asked for each of them, so it is kept."""
        self._num_tokens = [0] * len(request_ids)
        self._engines = [FIRST_ENGINE] * len(request_ids)
        self._pending: dict[int, RequestOutput] = {}
        self._failure: TrillmError | None = None
        self._news = trio.Event()

    @property
    def finished(self) -> bool:
        return not self.unfinished and not self._pending

    def engine(self, index: int) -> EngineIndex:
        return self._engines[index]

    def put(self, output: RequestOutput, engine: EngineIndex) -> None:
        index = self.unfinished[output.request_id]
        if output.offset != self._num_tokens[index] and output.error is None:
            self.fail(EngineDeadError("A part of this answer was lost on its way"))
            return
        self._num_tokens[index] += len(output.token_ids)
        self._engines[index] = engine
        self.has_begun = self.has_begun or bool(output.token_ids) or output.finish_reason is not None
        earlier = self._pending.get(index)
        self._pending[index] = merge(earlier, output) if earlier else output
        if output.finish_reason is not None:
            del self.unfinished[output.request_id]
        self._news.set()

    def fail(self, error: TrillmError) -> None:
        """What has arrived is still handed out first."""
        self._failure = self._failure or error
        self._news.set()

    async def receive(self) -> list[tuple[int, RequestOutput]]:
        while not self._pending:
            if self._failure is not None:
                raise self._failure
            self._news = trio.Event()
            await self._news.wait()
        taken = sorted(self._pending.items())
        self._pending = {}
        return taken
