"""The engines behind one API server: registers each request, hands its outputs to whoever waits, ends it exactly once.

Implements app/engine.py's EngineClient over the actors' House. Everything but waiting is synchronous, so that there is
no moment at which a cancellation could leave a request half registered.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from typing import assert_never, final

import attrs
import msgspec
import trio

from actors.handles import (
    ActorState,
    EngineLost,
    House,
    HouseEvent,
    HouseFailed,
    HouseSpec,
    OutputLost,
    open_actors,
)
from app.engine import Prompt, Readiness
from protocol.errors import BadRequestError, EngineDeadError, TrillmError, UnavailableError
from protocol.ids import FIRST_CLIENT, EngineIndex, Epoch, RequestId
from protocol.messages import (
    AbortRequest,
    EngineAttached,
    EngineCoreRequest,
    EngineState,
    EngineStats,
    GetState,
    RequestOutput,
    RequestOutputs,
    UtilityAnswer,
    UtilityRequest,
)
from protocol.sampling import Grammar, GrammarSource
from protocol.spec import EngineFacts

UTILITY_SECONDS = 10.0
LATE_SECONDS = 5.0
"""Without a heartbeat, from when on an actor is not trusted with new requests. (The supervisor ends it after 10 s.)"""


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
        num_cached_tokens=max(earlier.num_cached_tokens, later.num_cached_tokens),
    )


@final
class ActorGeneration:
    """The mailbox of one call of `generate`: at most one merged delta per prompt waits in it."""

    def __init__(self, request_ids: list[RequestId]) -> None:
        self.unfinished = dict(zip(request_ids, count(), strict=False))
        self._num_tokens = [0] * len(request_ids)
        self._pending: dict[int, RequestOutput] = {}
        self._failure: TrillmError | None = None
        self._news = trio.Event()

    @property
    def finished(self) -> bool:
        return not self.unfinished and not self._pending

    def put(self, output: RequestOutput) -> None:
        index = self.unfinished[output.request_id]
        if output.offset != self._num_tokens[index] and output.error is None:
            self.fail(EngineDeadError("A part of this answer was lost on its way"))
            return
        self._num_tokens[index] += len(output.token_ids)
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


def describe(state: ActorState) -> str:
    """What an actor that is not ready is doing, for /ready."""
    if state.ready:
        return f"{state.name} has not been heard of for {state.heartbeat_age:.0f} s"
    progress = f" ({state.progress:.0%})" if state.phase == "load" and state.progress else ""
    last = f"; before that it was {state.last_end}" if state.last_end else ""
    return f"{state.name}: {state.phase}{progress}{last}"


@attrs.frozen
class Live:
    """Where a request runs, and who waits for it."""

    generation: ActorGeneration
    engine_index: EngineIndex
    epoch: Epoch


@final
class ActorEngineClient:
    """Fulfils app.engine.EngineClient. Until `run` is given the house it is not ready."""

    def __init__(self, *, max_live_requests: int) -> None:
        self._max_live = max_live_requests
        self._house: House | None = None
        self._facts: EngineFacts | None = None
        self._attached: dict[EngineIndex, Epoch] = {}
        self._stats: dict[EngineIndex, EngineStats] = {}
        self._live: dict[RequestId, Live] = {}
        self._calls: dict[int, tuple[EngineIndex, trio.MemorySendChannel[EngineState | TrillmError]]] = {}
        self._ids = count(1)
        self._draining: str | None = None
        self._failure: str | None = None
        self.attached_once = trio.Event()
        self.failed = trio.Event()

    def __repr__(self) -> str:
        return f"<ActorEngineClient live={len(self._live)} attached={self._attached} failure={self._failure!r}>"

    # ------------------------------------------------------------------ what the routes see

    @property
    def facts(self) -> EngineFacts | None:
        return self._facts

    @property
    def alive(self) -> bool:
        return self._failure is None

    @property
    def failure(self) -> str | None:
        """Why the service is beyond recovery."""
        return self._failure

    @property
    def stats(self) -> EngineStats:
        """Over all engines. A dead one's gauges no longer count."""
        readings = [self._stats[index] for index in self._attached if index in self._stats]
        if len(readings) == 1:
            return readings[0]
        totals = [sum(column) for column in zip(*map(msgspec.structs.astuple, readings), strict=True)]
        return EngineStats(*totals)

    @property
    def num_requests(self) -> int:
        return len(self._live)

    @property
    def readiness(self) -> Readiness:
        reason = self._failure or self._draining
        if reason is None:
            reason = self._what_is_late()
        if reason is None and not self._attached:
            reason = "the actors are being connected"
        return Readiness(reason is None, reason or "")

    def _what_is_late(self) -> str | None:
        states = self._house.states() if self._house else []
        late = [state for state in states if not state.ready or state.heartbeat_age > LATE_SECONDS]
        return "; ".join(map(describe, late)) or None

    def generate(self, prompts: Sequence[Prompt]) -> AbstractAsyncContextManager[ActorGeneration]:
        return self._generate(prompts)

    @asynccontextmanager
    async def _generate(self, prompts: Sequence[Prompt]) -> AsyncIterator[ActorGeneration]:
        generation = self._start(prompts)
        try:
            yield generation
        finally:
            self._abort(generation)

    async def check_grammar(self, source: GrammarSource) -> Grammar:
        if self._house is None:
            raise UnavailableError(f"Not ready: {self.readiness.reason}")
        return await self._house.check_grammar(source)

    async def engine_state(self, index: EngineIndex) -> EngineState:
        """What the engine says of itself. Raises UnavailableError, EngineDeadError, or TooSlowError after 10 s."""
        epoch = self._attached.get(index)
        if epoch is None:
            raise UnavailableError(f"engine {index} is not ready")
        call_id = next(self._ids)
        say, answer = trio.open_memory_channel[EngineState | TrillmError](1)
        self._calls[call_id] = (index, say)
        try:
            if not self._actors.send_to_engine(index, UtilityRequest(epoch, FIRST_CLIENT, call_id, GetState())):
                raise EngineDeadError(f"engine {index} is gone")
            with trio.fail_after(UTILITY_SECONDS):
                state = await answer.receive()
        finally:
            self._calls.pop(call_id, None)
        if isinstance(state, TrillmError):
            raise state
        return state

    # ------------------------------------------------------------------ what serving does with it

    def drain(self, reason: str) -> None:
        """Take no more requests; those that run go on."""
        self._draining = reason

    def end_all(self, error: TrillmError) -> None:
        """Every live request ends with this error, now, here and in the actors."""
        for generation in {id(live.generation): live.generation for live in self._live.values()}.values():
            generation.fail(error)
            self._abort(generation)

    async def run_actors(self, spec: HouseSpec) -> None:
        """Keep the actors alive and serve over them until cancelled; then stop them all."""
        async with open_actors(spec) as house:
            await self.run(house)

    async def run(self, house: House) -> None:
        """Serve over this house until cancelled."""
        self._house = house
        house.listen(self._take)
        await trio.sleep_forever()

    @property
    def _actors(self) -> House:
        assert self._house is not None, "an engine is attached only once there is a house"
        return self._house

    # ------------------------------------------------------------------ requests

    def _start(self, prompts: Sequence[Prompt]) -> ActorGeneration:
        readiness = self.readiness
        if not readiness.ready:
            raise UnavailableError(f"Not ready: {readiness.reason}")
        if len(prompts) > self._max_live:
            raise BadRequestError(
                f"n times the number of prompts is {len(prompts)}; this server takes at most {self._max_live} at once",
                param="n",
            )
        if len(self._live) + len(prompts) > self._max_live:
            raise UnavailableError(
                f"Too many requests: {len(self._live)} are running or queued, the limit is {self._max_live}"
                + (f", and this one asks for {len(prompts)}" if len(prompts) > 1 else ""),
                code="queue_full",
            )
        generation = ActorGeneration([RequestId(f"r{next(self._ids)}") for _ in prompts])
        arrival = time.monotonic()
        try:
            for request_id, prompt in zip(list(generation.unfinished), prompts, strict=True):
                self._send(generation, request_id, prompt, arrival)
        except TrillmError:
            self._abort(generation)
            raise
        return generation

    def _send(self, generation: ActorGeneration, request_id: RequestId, prompt: Prompt, arrival: float) -> None:
        index = self._least_loaded()
        epoch = self._attached[index]
        request = EngineCoreRequest(
            epoch=epoch,
            client_index=FIRST_CLIENT,
            request_id=request_id,
            prompt_token_ids=prompt.prompt_token_ids,
            sampling_params=prompt.sampling_params,
            arrival_time=arrival,
            priority=prompt.priority,
            cache_salt=prompt.cache_salt,
        )
        self._live[request_id] = Live(generation, index, epoch)
        # The output handler first: it should know the request before the engine's first token comes.
        if not (self._actors.send_to_output(request) and self._actors.send_to_engine(index, request)):
            raise UnavailableError(f"Not ready: engine {index} or the output handler has just gone down")

    def _least_loaded(self) -> EngineIndex:
        loads = dict.fromkeys(self._attached, 0)
        for live in self._live.values():
            if live.engine_index in loads:
                loads[live.engine_index] += 1
        return min(loads, key=lambda index: loads[index])

    def _abort(self, generation: ActorGeneration) -> None:
        """Forget what is unfinished, here and in the actors. Idempotent."""
        by_engine: dict[tuple[EngineIndex, Epoch], list[RequestId]] = {}
        for request_id in generation.unfinished:
            if live := self._live.pop(request_id, None):
                by_engine.setdefault((live.engine_index, live.epoch), []).append(request_id)
        for (index, epoch), ids in by_engine.items():
            abort = AbortRequest(epoch, FIRST_CLIENT, ids)
            self._actors.send_to_engine(index, abort)
            self._actors.send_to_output(abort)

    # ------------------------------------------------------------------ events

    def _take(self, event: HouseEvent) -> None:
        match event:
            case RequestOutputs(engine_index=index, epoch=epoch, outputs=outputs, stats=stats):
                if self._attached.get(index) == epoch:
                    self._stats[index] = stats
                    for output in outputs:
                        self._deliver(output)
            case EngineAttached(engine_index=index, epoch=epoch):
                if (facts := self._actors.engine_facts(index, epoch)) is not None:
                    self._facts = facts
                    self._attached[index] = epoch
                    self._stats[index] = EngineStats(kv_blocks_total=facts.num_blocks)
                    self.attached_once.set()
            case UtilityAnswer(reply=reply):
                failed = TrillmError(reply.error or "the engine sent an empty answer")
                self._answer(reply.call_id, reply.result or failed)
            case EngineLost(engine_index=index, epoch=epoch, reason=reason):
                if self._attached.get(index) == epoch:
                    del self._attached[index]
                self._fail_where(index, epoch, f"The engine process that ran this request is gone: {reason}")
            case OutputLost(reason=reason):
                self._attached.clear()
                self._fail_where(None, None, f"The output handler of this request is gone: {reason}")
            case HouseFailed(reason=reason):
                self._failure = reason
                self._attached.clear()
                self._fail_where(None, None, f"The service cannot go on: {reason}")
                self.failed.set()
            case _:
                assert_never(event)

    def _deliver(self, output: RequestOutput) -> None:
        live = self._live.get(output.request_id)
        if live is None:
            return  # aborted: what was still on its way does not matter
        live.generation.put(output)
        if output.finish_reason is not None:
            del self._live[output.request_id]

    def _fail_where(self, index: EngineIndex | None, epoch: Epoch | None, reason: str) -> None:
        for request_id, live in list(self._live.items()):
            if index is None or (live.engine_index == index and live.epoch == epoch):
                del self._live[request_id]
                live.generation.fail(EngineDeadError(reason))
        for call_id, (call_index, _) in list(self._calls.items()):
            if index is None or call_index == index:
                self._answer(call_id, EngineDeadError(reason))

    def _answer(self, call_id: int, value: EngineState | TrillmError) -> None:
        """A call that is not outstanding (it ran into its deadline) gets nothing."""
        if call := self._calls.pop(call_id, None):
            call[1].send_nowait(value)
