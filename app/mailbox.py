"""Where one call's outputs wait for its reader: merged, so that a reader who stays away costs one delta per prompt, or
two where one engine has gone on with what another one began.

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
    """The mailbox of one call of `generate`. What waits of a prompt is merged, but for what the engine said that had it
    before: each engine's tokens count as its own, however late they are read."""

    def __init__(self, request_ids: list[RequestId]) -> None:
        self.unfinished = dict(zip(request_ids, count(), strict=False))
        self.has_begun = False
        """Whether any of its prompts has a token, or has ended without one. Asked for each of them, so it is kept."""
        self._num_tokens = [0] * len(request_ids)
        self._engines = [FIRST_ENGINE] * len(request_ids)
        self._pending: dict[int, RequestOutput] = {}
        self._before: dict[int, tuple[EngineIndex, RequestOutput]] = {}
        """What is to be read before that, of other engines."""
        self._read_before: dict[int, EngineIndex] = {}
        """Which ones these were, where that has just been read."""
        self._failure: TrillmError | None = None
        self._news = trio.Event()

    @property
    def finished(self) -> bool:
        return not self.unfinished and not self._pending

    def engine(self, index: int) -> EngineIndex:
        return self._read_before.get(index, self._engines[index])

    def put(self, output: RequestOutput, engine: EngineIndex) -> None:
        index = self.unfinished[output.request_id]
        if output.offset != self._num_tokens[index] and output.error is None:
            self.fail(EngineDeadError("A part of this answer was lost on its way"))
            return
        self._num_tokens[index] += len(output.token_ids)
        earlier = self._pending.get(index)
        if earlier is not None and engine != self._engines[index] and index not in self._before:
            self._before[index], earlier = (self._engines[index], earlier), None
        self._engines[index] = engine
        self.has_begun = self.has_begun or bool(output.token_ids) or output.finish_reason is not None
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
        self._read_before = {}
        if self._before:
            before, self._before = self._before, {}
            self._read_before = {index: engine for index, (engine, _) in before.items()}
            return sorted((index, output) for index, (_, output) in before.items())
        taken = sorted(self._pending.items())
        self._pending = {}
        return taken
