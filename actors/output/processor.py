"""OutputProcessor: the engine's tokens in, the clients' deltas out. Pure; the output actor sends what it returns.

One processor serves one incarnation of one engine, so it never sees two epochs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from actors.output.request_state import RequestState
from actors.output.vocabulary import Vocabulary
from protocol.ids import RequestId
from protocol.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason, RequestOutput

logger = logging.getLogger("trillm.output")

MAX_EARLY_REQUESTS = 256
"""Requests whose outputs are kept though they are not registered yet; the engine may be quicker than the app's word."""
MAX_EARLY_OUTPUTS = 256
"""Outputs kept for each of them."""
MAX_REMEMBERED = 4096
"""Ended requests whose late outputs are recognised, and as many requests whose early outputs were not kept."""


@dataclass(slots=True)
class Processed:
    """What is to be sent."""

    outputs: list[RequestOutput] = field(default_factory=list)
    """To the app."""
    aborts: list[RequestId] = field(default_factory=list)
    """To the engine: these have ended here, by a stop string or an error, and it does not know."""
    resync: dict[RequestId, int] = field(default_factory=dict)
    """To the engine: tokens are missing from this offset on. Said once for each gap."""


class OutputProcessor:
    """Every request that is registered gives exactly one output with a finish reason, unless it is aborted first or
    handed over by the engine: then the last one has a ticket instead.

    Outputs are applied by their absolute offset: what is known already is skipped, what leaves a gap is not applied.
    Whatever goes wrong while one request is processed ends this one, with finish reason "error".
    """

    def __init__(self, vocabulary: Vocabulary, clock: Callable[[], float] = time.perf_counter) -> None:
        """`clock`: in seconds, from anywhere; read for traced requests alone."""
        self._vocabulary = vocabulary
        self._clock = clock
        self._live: dict[RequestId, RequestState] = {}
        self._early: dict[RequestId, list[tuple[EngineCoreOutput, float]]] = {}
        """With the time at which each was published."""
        self._ended: dict[RequestId, None] = {}
        self._forgotten: dict[RequestId, None] = {}

    def register(self, request: EngineCoreRequest) -> Processed:
        """Make a request known; outputs that were here before it are applied. The last registration of an id counts."""
        processed = Processed()
        request_id = request.request_id
        self._ended.pop(request_id, None)
        early = self._early.pop(request_id, [])
        was_forgotten = request_id in self._forgotten
        self._forgotten.pop(request_id, None)
        try:
            state = RequestState(self._vocabulary, request)
        except Exception as error:
            self._fail(request_id, len(request.continuation_token_ids), error, processed)
            return processed
        self._live[request_id] = state
        if state.stopped_by is not None:
            end = RequestOutput(
                request_id, state.num_tokens, [], "", finish_reason=FinishReason.STOP, stop_reason=state.stopped_by
            )
            self._emit(end, processed, engine_knows=False)
            return processed
        for output, at in early:
            self._process(output, at, processed)
        if was_forgotten and request_id in self._live:
            processed.resync[request_id] = state.num_tokens
        return processed

    def abort(self, request_ids: Iterable[RequestId]) -> None:
        """Forget these; the app wants no more of them. Nothing is emitted. Unknown ids are ignored, now and later."""
        for request_id in request_ids:
            self._live.pop(request_id, None)
            self._early.pop(request_id, None)
            _remember(self._ended, request_id)

    def process(self, outputs: EngineCoreOutputs) -> Processed:
        processed = Processed()
        for output in outputs.outputs:
            self._process(output, outputs.at, processed)
        return processed

    def offsets(self) -> dict[RequestId, int]:
        """Of every live request, the number of output tokens that are here: what to ask for when frames were lost."""
        return {request_id: state.num_tokens for request_id, state in self._live.items()}

    def _process(self, output: EngineCoreOutput, at: float, processed: Processed) -> None:
        state = self._live.get(output.request_id)
        if state is None:
            if output.request_id not in self._ended:
                self._keep_early(output, at)
            return
        if output.offset > state.num_tokens and not _ends_without_tokens(output):
            if state.asked_again_at != state.num_tokens:
                state.asked_again_at = state.num_tokens
                processed.resync[state.request_id] = state.num_tokens
            return
        self._advance(state, output, at, processed)

    def _advance(self, state: RequestState, output: EngineCoreOutput, at: float, processed: Processed) -> None:
        try:
            delta = self._timed(state, output, at) if state.is_traced else state.advance(output, at)
        except Exception as error:
            self._fail(state.request_id, state.num_tokens, error, processed)
            return
        if delta is not None:
            self._emit(delta, processed, engine_knows=output.finish_reason is not None or output.kv_ticket is not None)

    def _timed(self, state: RequestState, output: EngineCoreOutput, at: float) -> RequestOutput | None:
        """Two readings of a clock are a twentieth of what a delta costs: only for requests that want to know."""
        began = self._clock()
        delta = state.advance(output, at)
        state.detokenising += self._clock() - began
        if delta is None or delta.timeline is None:
            return delta
        timeline = msgspec.structs.replace(delta.timeline, detokenising=state.detokenising)
        return msgspec.structs.replace(delta, timeline=timeline)

    def _emit(self, delta: RequestOutput, processed: Processed, *, engine_knows: bool) -> None:
        processed.outputs.append(delta)
        if delta.finish_reason is None and delta.kv_ticket is None:
            return
        self._live.pop(delta.request_id, None)
        _remember(self._ended, delta.request_id)
        processed.resync.pop(delta.request_id, None)
        if not engine_knows:
            processed.aborts.append(delta.request_id)

    def _fail(self, request_id: RequestId, offset: int, error: Exception, processed: Processed) -> None:
        logger.error(
            "the output of request %s could not be processed",
            request_id,
            exc_info=error,
            extra={"request_id": request_id},
        )
        message = "the output of this request could not be processed"
        end = RequestOutput(request_id, offset, [], "", finish_reason=FinishReason.ERROR, error=message)
        self._emit(end, processed, engine_knows=False)

    def _keep_early(self, output: EngineCoreOutput, at: float) -> None:
        """Outputs that go beyond a limit leave a gap, which is noticed when the request is registered."""
        kept = self._early.pop(output.request_id, [])
        self._early[output.request_id] = kept  # newest last
        if len(kept) < MAX_EARLY_OUTPUTS:
            kept.append((output, at))
        else:
            _remember(self._forgotten, output.request_id)
        if len(self._early) > MAX_EARLY_REQUESTS:
            oldest = next(iter(self._early))
            del self._early[oldest]
            _remember(self._forgotten, oldest)


def _ends_without_tokens(output: EngineCoreOutput) -> bool:
    """An error is an end whatever came before it: asking for the missing tokens could go on for ever."""
    return output.finish_reason is FinishReason.ERROR and not output.new_token_ids


def _remember(memory: dict[RequestId, None], request_id: RequestId) -> None:
    memory.pop(request_id, None)
    memory[request_id] = None
    if len(memory) > MAX_REMEMBERED:
        del memory[next(iter(memory))]
