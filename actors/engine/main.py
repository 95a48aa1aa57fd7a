"""The engine actor: takes requests in, steps, publishes. All decisions are the scheduler's."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import assert_never, final

import trio

from actors.control import Control, Pulse
from actors.engine.adapter_loader import AdapterLoader
from actors.engine.compilations import Compilations
from actors.engine.grammar import GrammarCompiler
from actors.engine.kv_link import EXPECTED_SECONDS, KvAccess, KvLink
from actors.engine.operations import Operations, Rest
from actors.engine.proposer import make_proposer
from actors.engine.publisher import Client, Publisher
from actors.engine.scheduler import MAX_IN_FLIGHT, Scheduler
from actors.engine.scheduler_config import SchedulerConfig
from actors.engine.sequence import Constraint
from actors.engine.stepper import Stepper, open_stepper
from actors.engine.weights_offer import open_offer
from gpu.load_report import LoadReport
from gpu.runner import open_runner
from protocol.codec import ENGINE_INPUT, ENGINE_OUTPUT, KV_INPUT, KV_OUTPUT
from protocol.errors import TrillmError
from protocol.ids import ClientIndex, Epoch, RequestId
from protocol.links import Inbox, Links, open_links, receive_batch
from protocol.messages import (
    AbortRequest,
    EngineCoreOutput,
    EngineCoreRequest,
    EngineInput,
    ResyncRequest,
    UtilityRequest,
)
from protocol.operations import UtilityResult
from protocol.phases import IMPORT, LOAD
from protocol.spec import EngineFacts, EngineSpec, LoadFormat
from protocol.step import StepPlan

LOADED_BYTES = 64 * 2**20
"""Of KV blocks that a step loads at most: all that decode wait for it, as for some milliseconds of computing."""
HEARTBEAT_SECONDS = 1.0
JUMPING_DEVICES = ("cpu", "none")
"""Where a step with a few more tokens takes a little longer. On a GPU only steps with one token per row are recorded
graphs (gpu/graph_plan.py); whether what a grammar foresees is worth a step without one was never measured."""
UNKNOWN_SECONDS = 2.0
"""How long a request that is asked for again and not known may still be on its way to us."""

Addressed = Iterable[tuple[ClientIndex, EngineCoreOutput]]


@final
class Engine:
    """One model replica's life: three tasks around a scheduler (intake, subscriptions, steps), a heartbeat, and the way
    to its connector if it has one.

    Not to be shared between threads. `work` is set whenever the scheduler may have something to do. With two steps in
    flight, one is planned while the other runs.
    """

    def __init__(
        self,
        epoch: Epoch,
        scheduler: Scheduler,
        stepper: Stepper,
        compiler: GrammarCompiler,
        clients: dict[ClientIndex, Client],
        pulse: Pulse,
        max_in_flight: int = 1,
        clock: Callable[[], float] = time.monotonic,
        profiler_directory: Path | None = None,
        max_cpu_loras: int = 0,
        kv: KvAccess | None = None,
    ) -> None:
        self._epoch = epoch
        self._scheduler = scheduler
        self._stepper = stepper
        self._clients = clients
        self._publishers = {index: Publisher(epoch, index, client) for index, client in clients.items()}
        self._pulse = pulse
        self._adapters = AdapterLoader(scheduler, stepper, self._publish, max_cpu_loras)
        self._kv = None if kv is None else KvLink(kv, scheduler, stepper, self._publish, self._notice)
        self._operations = Operations(scheduler, stepper, pulse, profiler_directory, self._end_all, self._adapters)
        self._max_in_flight = max_in_flight
        self._clock = clock
        self._work = trio.Event()
        self._compilations = Compilations(compiler, self._add_compiled, self._publish_one)

    async def run(self, inbox: Inbox[EngineInput]) -> None:
        """Serve until cancelled. Raises what breaks the runner: then this process has to end."""
        async with trio.open_nursery() as nursery:
            for index, client in self._clients.items():
                nursery.start_soon(self._watch_subscription, index, client)
            nursery.start_soon(self._take_in, inbox, nursery)
            nursery.start_soon(self._beat)
            if self._kv is not None:
                self._scheduler.kv.expect(self._clock() + EXPECTED_SECONDS)
                nursery.start_soon(self._kv.run)
            await self._steps(nursery)

    async def _steps(self, nursery: trio.Nursery) -> None:
        in_flight: deque[StepPlan] = deque()
        began = 0.0  # when the runner turned to the oldest step in flight
        while True:
            while len(in_flight) < self._max_in_flight and (plan := self._schedule()) is not None:
                if not in_flight:
                    began = trio.current_time()
                self._stepper.submit(plan)
                in_flight.append(plan)
            if changes := self._scheduler.take_adapter_changes():
                self._adapters.begin(changes, nursery, self._wake)
            if not in_flight:
                self._pulse.enter("idle")
                self._work = trio.Event()
                # Behind the deadline: a clock that has just not got there would be asked again and again.
                seconds = self._scheduler.kv.next_deadline - self._clock()
                with trio.move_on_after(max(0.0, seconds) + 0.001 if seconds < math.inf else math.inf):
                    await self._work.wait()
                continue
            self._pulse.enter("step")
            result = await self._stepper.result()
            plan = in_flight.popleft()
            self._pulse.step = plan.step
            ended = trio.current_time()
            self._publish(self._scheduler.commit(plan, result, ended - began))
            self._say_to_connector()
            self._operations.notice()
            began = ended

    def _schedule(self) -> StepPlan | None:
        self._attend_connector()
        return self._scheduler.schedule(self._clock())

    def _attend_connector(self) -> None:
        if self._kv is not None and (ended := self._scheduler.attend_connector(self._clock())):
            self._publish(ended)
            self._operations.notice()
        self._say_to_connector()

    def _say_to_connector(self) -> None:
        if self._kv is not None:
            self._kv.flush()

    def _wake(self) -> None:
        self._work.set()

    def _notice(self) -> None:
        self._operations.notice()
        self._work.set()

    async def _take_in(self, inbox: Inbox[EngineInput], nursery: trio.Nursery) -> None:
        while True:
            for message in await receive_batch(inbox):
                if message.epoch == self._epoch and message.client_index in self._publishers:
                    self._take(message, nursery)
            self._attend_connector()
            self._operations.notice()
            self._work.set()

    def _take(self, message: EngineInput, nursery: trio.Nursery) -> None:
        match message:
            case EngineCoreRequest() if message.sampling_params.grammar is not None:
                self._compilations.begin(message, nursery)
            case EngineCoreRequest():
                self._publish(self._scheduler.add(message))
            case AbortRequest(client_index=index, request_ids=ids):
                self._abort(index, ids)
            case ResyncRequest():
                self._resync(message, nursery)
            case UtilityRequest():
                self._operate(message, nursery)
            case _:
                assert_never(message)

    def _resync(self, message: ResyncRequest, nursery: trio.Nursery) -> None:
        """Say again what is known. The rest may be on its way to us (the app and the output handler speak over
        different sockets) or in the grammar compiler: it gets its answer a little later."""
        index = message.client_index
        known = {i: offset for i, offset in message.offsets.items() if self._scheduler.knows(index, i)}
        self._publish((index, output) for output in self._scheduler.resync(index, known))
        if len(known) < len(message.offsets):
            rest = {i: offset for i, offset in message.offsets.items() if i not in known}
            nursery.start_soon(self._resync_later, index, rest)

    async def _resync_later(self, index: ClientIndex, offsets: dict[RequestId, int]) -> None:
        await trio.sleep(UNKNOWN_SECONDS)
        ours = {i: offset for i, offset in offsets.items() if (index, i) not in self._compilations}
        self._publish((index, output) for output in self._scheduler.resync(index, ours))

    def _operate(self, message: UtilityRequest, nursery: trio.Nursery) -> None:
        answer: UtilityResult | Rest | TrillmError
        try:
            answer = self._operations.begin(message.operation)
        except TrillmError as error:
            answer = error
        if callable(answer):
            nursery.start_soon(self._finish_operation, message, answer)
        else:
            self._publishers[message.client_index].reply(message.call_id, answer)

    async def _finish_operation(self, message: UtilityRequest, rest: Rest) -> None:
        answer: UtilityResult | TrillmError
        try:
            answer = await rest()
        except TrillmError as error:
            answer = error
        self._publishers[message.client_index].reply(message.call_id, answer)
        self._work.set()

    def _end_all(self, error: str) -> int:
        """Every request ends with this sentence, also those whose grammars are still being compiled. How many."""
        num_compiling = self._compilations.end_all(error)
        ended = self._scheduler.abort_all(error)
        self._publish(ended)
        return num_compiling + len(ended)

    def _abort(self, index: ClientIndex, ids: list[RequestId]) -> None:
        for request_id in ids:
            self._compilations.cancel(index, request_id)
        self._scheduler.abort(index, ids)
        # An abort has no answer, but the gauges that the client shows should not wait for the next step.
        self._publishers[index].heartbeat(self._scheduler.stats())

    def _add_compiled(self, request: EngineCoreRequest, grammar: Constraint) -> None:
        self._publish(self._scheduler.add(request, grammar))
        self._work.set()

    def _publish_one(self, index: ClientIndex, output: EngineCoreOutput) -> None:
        self._publish([(index, output)])

    def _publish(self, addressed: Addressed) -> None:
        by_client: defaultdict[ClientIndex, list[EngineCoreOutput]] = defaultdict(list)
        for index, output in addressed:
            by_client[index].append(output)
        for index, outputs in by_client.items():
            self._publishers[index].outputs(outputs, self._scheduler.stats(), self._clock())

    async def _watch_subscription(self, index: ClientIndex, client: Client) -> None:
        while True:
            if await client.receive():
                self._publishers[index].welcome()
            else:
                # Its output handler is gone, and with it everybody who could read the answers.
                self._publishers[index].farewell()
                self._compilations.cancel_client(index)
                self._scheduler.abort_client(index)
                self._operations.notice()

    async def _beat(self) -> None:
        while True:
            await trio.sleep(HEARTBEAT_SECONDS)
            self._publish(self._scheduler.expire(self._clock()))  # also while no step is made
            self._attend_connector()
            for publisher in self._publishers.values():
                publisher.heartbeat(self._scheduler.stats(whole=True))


def make_engine(
    spec: EngineSpec,
    stepper: Stepper,
    clients: dict[ClientIndex, Client],
    pulse: Pulse,
    clock: Callable[[], float] = time.monotonic,
    kv: KvAccess | None = None,
) -> Engine:
    """The engine over a loaded runner."""
    facts = stepper.facts
    config = SchedulerConfig(
        num_blocks=facts.num_blocks,
        block_size=facts.block_size,
        max_num_seqs=spec.max_num_seqs,
        max_num_batched_tokens=spec.max_num_batched_tokens,
        max_model_len=facts.max_model_len,
        policy=spec.scheduling_policy,
        long_prefill_token_threshold=spec.long_prefill_token_threshold,
        enable_prefix_caching=spec.enable_prefix_caching,
        vocab_size=facts.vocab_size,
        max_loras=spec.max_loras,
        jumps_ahead=facts.device in JUMPING_DEVICES,
        kv_seconds=spec.kv_seconds,
        max_num_loads=1 if facts.kv_layout is None else max(1, LOADED_BYTES // facts.kv_layout.frame_bytes),
    )
    compiler = GrammarCompiler(spec.checkpoint, facts.vocab_size)
    plans_ahead = facts.device != "cpu" if spec.async_scheduling is None else spec.async_scheduling
    max_in_flight = MAX_IN_FLIGHT if plans_ahead else 1
    scheduler = Scheduler(config, make_proposer(spec.speculative), spec.epoch)
    profiles = None if spec.profiler_directory is None else Path(spec.profiler_directory)
    return Engine(
        spec.epoch,
        scheduler,
        stepper,
        compiler,
        clients,
        pulse,
        max_in_flight,
        clock,
        profiles,
        spec.max_cpu_loras,
        kv,
    )


async def run_engine_process(spec: EngineSpec, control: Control) -> None:
    """The engine as a process: load, bind, say Ready, serve until cancelled."""
    pulse = control.pulse
    pulse.enter(LOAD if spec.load_format is LoadFormat.DUMMY else IMPORT)

    def report(progress: float) -> None:
        pulse.progress = progress

    async with (
        open_offer(spec, control) as offer,
        open_stepper(partial(open_runner, spec, offer=offer), LoadReport(report, pulse.enter)) as stepper,
    ):
        with open_links(spec.curve) as links:
            inbox = links.pull(spec.requests_address, ENGINE_INPUT)
            clients: dict[ClientIndex, Client] = {
                index: links.publish(address, ENGINE_OUTPUT) for index, address in spec.outputs_addresses.items()
            }
            engine = make_engine(spec, stepper, clients, pulse, kv=_kv_access(spec, stepper.facts, control, links))
            pulse.enter("idle")
            await control.ready(stepper.facts)
            await engine.run(inbox)


def _kv_access(spec: EngineSpec, facts: EngineFacts, control: Control, links: Links) -> KvAccess | None:
    if not spec.kv_address or facts.kv_layout is None:  # nor is a connector started for blocks that cannot be copied
        return None
    inbox = links.pull(spec.kv_address, KV_OUTPUT)
    return KvAccess(spec.epoch, control.kv, inbox, lambda address: links.push(address, KV_INPUT))
