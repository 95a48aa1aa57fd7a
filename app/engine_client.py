"""The engines behind one API server: registers each request, hands its outputs to whoever waits, ends it exactly once,
and goes on with it when an engine or the output handler dies.

Implements app/engine.py's EngineClient over the actors' House. Everything but waiting is synchronous, so that there is
no moment at which a cancellation could leave a request half registered.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import assert_never, final

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
from app.api_identity import ALONE, ApiIdentity
from app.counted import counted
from app.deadline import GRACE_SECONDS, Deadline
from app.dispatch import Dispatch
from app.engine import EngineReading, LorasInUse, Prompt, Readiness
from app.engine_calls import EngineCalls
from app.engine_operations import EngineOperations, empties_caches
from app.engine_peers import EnginePeers, NobodyElse
from app.engines import Engines
from app.incidents import Incidents
from app.journal import Entry, loras_in_use
from app.late_actors import late_engines, what_is_late
from app.late_requests import LateRequests
from app.mailbox import ActorGeneration
from app.replays import Replays
from app.roles import Roles
from app.room import Room
from app.routing import Router
from app.tracing.request_trace import current_trace
from protocol.engine_stats import EngineStats
from protocol.errors import EngineDeadError, TrillmError, UnavailableError
from protocol.ids import FIRST_ENGINE, EngineIndex, Epoch, RequestId
from protocol.log_lines import REQUEST
from protocol.messages import (
    EngineAttached,
    RequestOutput,
    RequestOutputs,
    UtilityAnswer,
    UtilityRequest,
)
from protocol.operations import (
    EngineState,
    GetState,
    RunState,
    UtilityOperation,
    UtilityResult,
)
from protocol.sampling import Grammar, GrammarSource
from protocol.spec import EngineFacts

logger = logging.getLogger("trillm")


@final
class ActorEngineClient:
    """Fulfils app.engine.EngineClient. Until `run` is given the house it is not ready."""

    def __init__(
        self,
        *,
        max_live_requests: int,
        max_queue_seconds: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
        to_check: str | None = None,
        has_prefix_cache: bool = True,
        identity: ApiIdentity = ALONE,
        peers: EnginePeers | None = None,
        roles: Roles | None = None,
    ) -> None:
        """`max_queue_seconds`: how long a request may wait for its first token. `clock`: that of the engines.
        `to_check`: why no requests are taken, though the engines are up, until `admit` is called. `has_prefix_cache`:
        whether engines find again what they have computed. `identity`: which of several API servers this is, and
        `peers` the others; `max_live_requests` is then for all together, as far as engines tell of the others'.
        `roles`: which engines compute prompts, if not all do."""
        self._max_queue_seconds = max_queue_seconds
        self._clock = clock
        self.incidents = Incidents()
        self._house: House | None = None
        self._engines = Engines()
        self._router = Router(has_prefix_cache=has_prefix_cache)
        self._live: dict[RequestId, Entry] = {}
        self._room = Room(self._live, max_live_requests, self._num_of_others)
        self._replays = Replays(self._live, self.incidents, roles)
        self.identity = identity
        self._dispatch = Dispatch(self._engines, self._router, self._replays, identity, roles)
        self._peers = peers or NobodyElse()
        self._calls = EngineCalls(identity, self._peers.held)
        self._operations = EngineOperations(self._engines, self._calls, self._send_utility)
        self._late = LateRequests(
            self._live, self._end, max_queue_seconds, self.incidents, lambda: self._calls.run_state.is_held
        )
        self._ids = identity.request_ids()
        self._draining: str | None = None
        self._failure: str | None = None
        self._to_check = to_check
        self.attached_once = trio.Event()
        self.admitted = trio.Event()
        self.failed = trio.Event()

    def __repr__(self) -> str:
        return f"<ActorEngineClient live={len(self._live)} attached={self._engines.attached} failure={self._failure!r}>"

    # ------------------------------------------------------------------ what the routes see

    @property
    def facts(self) -> EngineFacts | None:
        return self._engines.facts

    @property
    def alive(self) -> bool:
        return self._failure is None

    @property
    def failure(self) -> str | None:
        """Why the service is beyond recovery."""
        return self._failure

    @property
    def stats(self) -> EngineStats:
        """Over all engines. A dead one's gauges no longer count; counters go on where its predecessor's ended."""
        return self._engines.stats

    def readings(self) -> list[EngineReading]:
        """Before there is any: of the first, which has done nothing."""
        stats_of_each = self._engines.stats_of_each() or {FIRST_ENGINE: EngineStats()}
        return [
            EngineReading(
                index,
                stats,
                self._calls.state_of(index),
                self._engines.facts_of(index),
                self._router.predicted[index],
            )
            for index, stats in stats_of_each.items()
        ]

    @property
    def num_requests(self) -> int:
        return len(self._live)

    @property
    def loras_in_use(self) -> LorasInUse:
        return loras_in_use(self._live.values())

    def live(self) -> list[Entry]:
        """The journal: what is kept of each request that has not ended."""
        return list(self._live.values())

    @property
    def readiness(self) -> Readiness:
        states = self.actors()
        reason = self._failure or self._draining or what_is_late(states)
        if reason is None and not self._engines.serving(states):
            reason = "the actors are being connected"
        if reason is None:
            reason = self._to_check
        return Readiness(reason is None, reason or "", late_engines(states))

    def actors(self) -> Sequence[ActorState]:
        return self._house.states() if self._house else []

    def generate(
        self, prompts: Sequence[Prompt], deadline: Deadline | None = None, *, goes_on: bool = False, waits: bool = False
    ) -> AbstractAsyncContextManager[ActorGeneration]:
        return self._generate(prompts, deadline, goes_on, waits)

    @asynccontextmanager
    async def _generate(
        self, prompts: Sequence[Prompt], deadline: Deadline | None, goes_on: bool, waits: bool
    ) -> AsyncIterator[ActorGeneration]:
        self._check_ready(goes_on or waits)
        first_token_by = trio.current_time() + self._max_queue_seconds
        if waits:
            with trio.move_on_at(first_token_by if deadline is None else min(first_token_by, deadline.at)) as scope:
                await self._room.wait(len(prompts))
            if scope.cancelled_caught:
                raise self._late.lateness(deadline)
            self._check_ready(is_patient=True)
        elif not goes_on:
            self._room.check(len(prompts))
        generation = self._start(prompts, deadline, first_token_by, goes_on or waits)
        try:
            yield generation
        finally:
            self._abort(generation)

    async def check_grammar(self, source: GrammarSource) -> Grammar:
        if self._house is None:
            raise UnavailableError(f"Not ready: {self.readiness.reason}")
        return await self._house.check_grammar(source)

    @property
    def run_state(self) -> RunState:
        return self._calls.run_state

    async def operate(self, operation: UtilityOperation) -> list[UtilityResult]:
        late = what_is_late(self.actors())
        if not self._engines.attached or late is not None:
            raise UnavailableError(f"Not ready: {late or self.readiness.reason}")
        try:
            results = await self._operations.operate(operation, self.actors())
        finally:
            if empties_caches(operation):
                self.forget_caches()
                self._peers.caches_emptied()
        await self._peers.settle()
        return results

    def learn(self, index: EngineIndex, state: RunState) -> None:
        """Another API server has had this engine held or released."""
        self._calls.learn(index, state)

    def forget_caches(self) -> None:
        """Engines may find nothing any more of what they computed before."""
        self._router.forget()

    async def engine_state(self, index: EngineIndex) -> EngineState:
        """What the engine says of itself. Raises UnavailableError, and as `operate` does."""
        epoch = self._engines.attached.get(index)
        if epoch is None:
            raise UnavailableError(f"engine {index} is not ready")
        state = await self._operations.ask(index, epoch, GetState())
        assert isinstance(state, EngineState), f"engine {index} has answered with {state}"
        return state

    def _send_utility(self, index: EngineIndex, request: UtilityRequest) -> bool:
        return self._actors.send_to_engine(index, request)

    # ------------------------------------------------------------------ what serving does with it

    def admit(self) -> None:
        """Requests are taken from here on, as far as the engines are up."""
        self._to_check = None
        self.admitted.set()

    def drain(self, reason: str) -> None:
        """Take no more requests; those that run go on."""
        self._draining = reason

    def end_all(self, error: TrillmError) -> None:
        """Every live request ends with this error, now, here and in the actors."""
        for generation in {id(entry.generation): entry.generation for entry in self._live.values()}.values():
            generation.fail(error)
            self._abort(generation)

    def give_up(self, reason: str) -> None:
        """The service cannot go on, for a reason that the operator has been told."""
        self._failure = reason
        self._engines.attached.clear()
        self.end_all(EngineDeadError(f"The service cannot go on: {reason}"))
        self.end_operations(reason)
        self._room.freed(self._room.num_waiting)  # those who wait hear of it, too
        self.failed.set()

    def end_operations(self, reason: str) -> None:
        """Nobody waits for an engine's answer any longer."""
        self._calls.fail(None, reason)

    async def run_actors(self, spec: HouseSpec) -> None:
        """Keep the actors alive and serve over them until cancelled; then stop them all."""
        async with open_actors(spec) as house:
            await self.run(house)

    async def run(self, house: House) -> None:
        """Serve over this house until cancelled."""
        self._house = house
        self._dispatch.use(house)
        house.listen(self._take)
        await self._late.run()

    @property
    def _actors(self) -> House:
        assert self._house is not None, "an engine is attached only once there is a house"
        return self._house

    # ------------------------------------------------------------------ requests

    def _num_of_others(self) -> int:
        """Live requests of other API servers, as the engines last told."""
        if not self.identity.has_peers:
            return 0
        return self._replays.sequences_of_others(self._engines.latest()).total()

    def _check_ready(self, is_patient: bool) -> None:
        readiness = self.readiness
        if not readiness.ready and not (is_patient and self.alive):
            raise UnavailableError(f"Not ready: {readiness.reason}")

    def _start(
        self, prompts: Sequence[Prompt], deadline: Deadline | None, first_token_by: float, is_patient: bool
    ) -> ActorGeneration:
        ids = [next(self._ids) for _ in prompts]
        generation = ActorGeneration(ids)
        if (asked := REQUEST.get()) is not None:
            asked.engine_requests += ids
        arrival, now = self._clock(), trio.current_time()
        trace = current_trace.get()
        if trace is not None and not trace.is_recorded:
            trace = None
        drop_at = None if deadline is None else arrival + deadline.at - now + GRACE_SECONDS
        entries = [
            Entry(
                request_id,
                prompt,
                generation,
                arrival,
                deadline,
                drop_at,
                first_token_by,
                client=self.identity.client,
                trace=trace,
            )
            for request_id, prompt in zip(list(generation.unfinished), prompts, strict=True)
        ]
        try:
            for entry in entries:
                self._live[entry.request_id] = entry
                self._late.note(entry)
            if not self._dispatch.send(entries) and not is_patient:
                raise UnavailableError("Not ready: the engine or the output handler has just gone down")
        except TrillmError:
            self._abort(generation)
            raise
        return generation

    def _end(self, entry: Entry, error: TrillmError) -> None:
        """This one, with all choices of its call."""
        entry.generation.fail(error)
        self._abort(entry.generation)

    def _abort(self, generation: ActorGeneration) -> None:
        """Forget what is unfinished, here and in the actors. Idempotent."""
        entries = [entry for i in generation.unfinished if (entry := self._live.pop(i, None))]
        self._room.freed(len(entries))
        self._dispatch.withdraw(entries)
        if any(entry.is_on_trial for entry in entries):
            self._dispatch.go_on()

    # ------------------------------------------------------------------ events

    def _take(self, event: HouseEvent) -> None:
        match event:
            case RequestOutputs(engine_index=index, epoch=epoch, outputs=outputs, stats=stats):
                if self._engines.is_attached(index, epoch):
                    self._engines.take(index, stats)
                    if self.identity.has_peers:
                        self._room.look_again()  # theirs may have ended
                    is_due = False
                    for output in outputs:
                        is_due = self._deliver(output, (index, epoch)) or is_due
                    if is_due:
                        self._dispatch.go_on()
            case EngineAttached(engine_index=index, epoch=epoch):
                if (facts := self._actors.engine_facts(index, epoch)) is not None:
                    self._attach(index, epoch, facts)
            case UtilityAnswer(engine_index=index, reply=reply):
                if self._engines.is_attached(index, reply.epoch):
                    self._calls.take(index, reply)
            case EngineLost(engine_index=index, epoch=epoch, reason=reason, from_outside=from_outside):
                self.incidents.deaths[f"engine-{index}"] += 1
                self._engines.detach(index, epoch)
                told = f"The engine process that ran this request is gone: {reason}"
                self._lose_engine((index, epoch), told, is_innocent=from_outside or self._calls.is_held(index))
            case OutputLost(reason=reason):
                self.incidents.deaths[f"output-{self.identity.client}"] += 1
                # The engines still run them, and drop them when they see that their subscriber is gone; whichever they
                # hear first, they must not have them twice.
                self._engines.attached.clear()
                self._replays.send_home(f"output-{self.identity.client}")
                self._dispatch.withdraw(list(self._live.values()))
                self._calls.fail(None, reason)
            case HouseFailed(reason=reason):
                self.give_up(reason)
            case _:
                assert_never(event)

    def _attach(self, index: EngineIndex, epoch: Epoch, facts: EngineFacts) -> None:
        self._calls.hold_again(index, epoch, partial(self._actors.send_to_engine, index))
        if not self._engines.was_attached(index, epoch):
            self._router.attach(index, facts.num_blocks, facts.block_size)
        self._engines.attach(index, epoch, facts)
        self._replays.come_home(index)
        if self.attached_once.is_set():
            num = self._replays.num_waiting
            those = f", and {counted(num, 'request')} {'goes' if num == 1 else 'go'} on" if num else ""
            logger.info("engine-%s serves%s", index, those)
        self.attached_once.set()
        self._dispatch.go_on()

    def _deliver(self, output: RequestOutput, engine: tuple[EngineIndex, Epoch]) -> bool:
        """Whether some that wait for an engine may go on with it."""
        entry = self._live.get(output.request_id)
        if entry is None or entry.engine != engine:
            return False  # aborted, or gone on elsewhere: what was still on its way does not matter
        was_on_trial = entry.is_on_trial
        entry.deliver(output, engine[0])
        if output.finish_reason is not None:
            del self._live[output.request_id]
            self._room.freed(1)
        elif output.kv_ticket is not None:
            entry.hand_over(output.kv_ticket)
            return True
        return was_on_trial

    def _lose_engine(self, engine: tuple[EngineIndex, Epoch], reason: str, *, is_innocent: bool) -> None:
        """Its requests go on in the others, or wait for the next one, but for those that are taken for the cause."""
        for entry in self._replays.lose(engine, is_innocent=is_innocent):
            del self._live[entry.request_id]
            self._room.freed(1)
            told = f"{reason}; it is number {entry.deaths} in a row to die under this request"
            entry.generation.fail(EngineDeadError(told))
        self._calls.fail(engine[0], reason)
        self._dispatch.go_on()
