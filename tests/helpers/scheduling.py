"""What the scheduler's tests start from: requests, a scheduler with its dummy runner, and the loop that drives both."""

from __future__ import annotations

import dataclasses
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from actors.engine.adapter_places import AdapterChange
from actors.engine.proposer import Proposer, make_proposer
from actors.engine.scheduler import Addressed, Scheduler
from actors.engine.scheduler_config import SchedulerConfig
from actors.engine.sequence import Constraint, Foreseen, Sequence
from gpu.fake_runner import FakeRunner
from gpu.lora_checkpoint import AdapterWeights
from gpu.runner import Runner
from protocol.ids import ClientIndex, EngineIndex, Epoch, RequestId
from protocol.kv import KvParams
from protocol.lora import LoraId, LoraRequest
from protocol.messages import EngineCoreOutput, EngineCoreRequest, FinishReason
from protocol.sampling import SamplingParams
from protocol.spec import DraftModelSpec, EngineSpec, LoadFormat
from protocol.step import StepPlan, StepResult
from tests.helpers.runner_conformance import only

VOCAB_SIZE = 64
EOS = 2


def write_tiny_config(directory: Path) -> Path:
    """The least that the dummy runner needs: a vocabulary of 64 tokens, of which one is EOS."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {"vocab_size": VOCAB_SIZE, "eos_token_id": EOS, "max_position_embeddings": 64}
    (directory / "config.json").write_bytes(msgspec.json.encode(config))
    return directory


def a_config(**changes: object) -> SchedulerConfig:
    config = SchedulerConfig(num_blocks=64, block_size=4, max_num_seqs=4, max_num_batched_tokens=16, max_model_len=64)
    return dataclasses.replace(config, **changes)


def a_request(
    request_id: str = "a",
    prompt: Iterable[int] = (5, 6, 7),
    *,
    client: int = 0,
    priority: int = 0,
    arrival: float = 0.0,
    continuation: Iterable[int] = (),
    salt: str = "",
    lora: int = 0,
    kv: KvParams | None = None,
    **params: object,
) -> EngineCoreRequest:
    """Greedy, five tokens at most, and EOS is ignored, unless `params` says otherwise."""
    wish = msgspec.structs.replace(SamplingParams(max_tokens=5, seed=11, temperature=0.0), **params)
    return EngineCoreRequest(
        epoch=Epoch(1),
        client_index=ClientIndex(client),
        request_id=RequestId(request_id),
        prompt_token_ids=list(prompt),
        sampling_params=wish,
        arrival_time=arrival,
        priority=priority,
        continuation_token_ids=list(continuation),
        cache_salt=salt,
        lora=LoraRequest(f"adapter-{lora}", LoraId(lora), "/nowhere") if lora else None,
        kv=kv,
    )


def ids(*request_ids: str) -> list[RequestId]:
    return [RequestId(request_id) for request_id in request_ids]


DRAFTS = DraftModelSpec(num_speculative_tokens=4, checkpoint="")
"""Makes the dummy runner guess."""


class Bench:
    """A scheduler and a dummy runner of the same sizes, or another one; remembers every output by request.

    `step` leaves nothing in flight; `run` plans ahead as far as `max_in_flight` says.
    """

    def __init__(
        self,
        checkpoint: Path,
        config: SchedulerConfig,
        max_in_flight: int = 1,
        proposer: Proposer | None = None,
        speculative: DraftModelSpec | None = None,
        runner: Runner | None = None,
    ) -> None:
        self.config = config
        self.max_in_flight = max_in_flight
        self.in_flight: deque[StepPlan] = deque()
        self.scheduler = Scheduler(config, proposer or make_proposer(speculative), Epoch(1))
        self.runner = runner or FakeRunner(a_spec(checkpoint, config, speculative))
        self.outputs: defaultdict[str, list[EngineCoreOutput]] = defaultdict(list)
        self.requests: dict[str, EngineCoreRequest] = {}
        self.plans: list[StepPlan] = []

    def add(self, request: EngineCoreRequest, grammar: Constraint | None = None) -> None:
        self.requests[request.request_id] = request
        self.take(self.scheduler.add(request, grammar))

    def schedule(self, now: float = 0.0) -> StepPlan | None:
        plan = self.scheduler.schedule(now)
        if plan is not None:
            self.plans.append(plan)
        return plan

    def bring_adapters(self) -> list[AdapterChange]:
        """Do what the scheduler wants changed, at once; the runner has the adapters that it is said to have."""
        changes = self.scheduler.take_adapter_changes()
        for change in changes:
            if change.leaving is not None:
                assert self.runner.remove_lora(change.leaving)
            if change.coming is not None:
                self.runner.add_lora(change.coming, AdapterWeights({}))
                self.scheduler.adapters.arrive(change.coming.lora_id)
        return changes

    def compute(self, plan: StepPlan) -> StepResult:
        return self.runner.step(plan)

    def commit(self, plan: StepPlan, result: StepResult) -> None:
        self.take(self.scheduler.commit(plan, result))

    def step(self) -> StepPlan:
        plan = self.schedule()
        assert plan is not None
        self.commit(plan, self.compute(plan))
        return plan

    def run(self, max_steps: int = 10_000) -> None:
        """Step until there is nothing to do."""
        for _ in range(max_steps):
            while len(self.in_flight) < self.max_in_flight and (plan := self.schedule()) is not None:
                self.in_flight.append(plan)
            if not self.bring_adapters() and not self.in_flight:
                return
            if not self.in_flight:
                continue
            plan = self.in_flight.popleft()
            self.commit(plan, self.compute(plan))
        raise AssertionError(f"still at work after {max_steps} steps: {self.scheduler!r}")

    def take(self, addressed: list[Addressed]) -> None:
        for _, output in addressed:
            self.outputs[output.request_id].append(without_history(output))

    def tokens(self, request_id: str) -> list[int]:
        """What a client has after all outputs, which must continue each other."""
        tokens = list(self.requests[request_id].continuation_token_ids)
        for output in self.outputs[request_id]:
            assert output.offset == len(tokens), f"{request_id} skips from {len(tokens)} to {output.offset}"
            tokens += output.new_token_ids
        return tokens

    def finish(self, request_id: str) -> EngineCoreOutput:
        """The last output, the only one with a finish reason."""
        *before, last = self.outputs[request_id]
        assert last.finish_reason is not None
        assert all(output.finish_reason is None for output in before)
        return last

    def reason(self, request_id: str) -> FinishReason | None:
        return self.finish(request_id).finish_reason


def without_history(output: EngineCoreOutput) -> EngineCoreOutput:
    """What a client gets, however the request fared on its way."""
    return msgspec.structs.replace(output, scheduled_at=None, num_preemptions=0)


class Oracle:
    """Proposes what `truth` says will come, often with an error somewhere, and sometimes nothing."""

    def __init__(self, truth: Callable[[EngineCoreRequest], list[int]]) -> None:
        self._truth = truth

    def propose(self, sequence: Sequence, count: int) -> list[int]:
        known = sequence.num_output_tokens
        guesses = self._truth(sequence.request)[known : known + min(count, known % 5)]
        if guesses and known % 3:
            guesses[known % len(guesses)] = known % VOCAB_SIZE
        return guesses


class ScriptedGrammar:
    """Allows exactly these tokens, one after the other; may be told to fail when a mask is asked for. With `others` it
    allows the next higher token as well, each time. If it `foresees`, it does so by its script."""

    def __init__(
        self, script: Iterable[int], fail_at: int | None = None, *, others: bool = False, foresees: bool = False
    ) -> None:
        self.error: str | None = None
        self._script = list(script)
        self._fail_at = fail_at
        self._others = others
        self._foresees = foresees
        self._accepted = 0

    @property
    def is_finished(self) -> bool:
        return self._accepted == len(self._script)

    def accept(self, token_id: int) -> bool:
        if self.is_finished or token_id not in self._allowed(self._accepted):
            self.error = f"token {token_id} is not allowed"
            return False
        self._accepted += 1
        return True

    def bitmask(self) -> bytes:
        if self._accepted == self._fail_at:
            self.error = "too ambiguous"
        return only(self._allowed(self._accepted), VOCAB_SIZE)

    def look_ahead(self, count: int) -> list[Foreseen]:
        places = range(self._accepted, len(self._script) - 1)[: count if self._foresees else 0]
        return [Foreseen(self._script[place], only(self._allowed(place + 1), VOCAB_SIZE)) for place in places]

    def _allowed(self, place: int) -> list[int]:
        token_ids = self._script[place : place + 1]
        return [*token_ids, *(token_id + 1 for token_id in token_ids)] if self._others else token_ids


def alone(checkpoint: Path, request: EngineCoreRequest) -> Bench:
    """A bench on which this request has run by itself, with room for everything."""
    bench = Bench(checkpoint, a_config(max_num_batched_tokens=64, max_loras=1))
    bench.add(request)
    bench.run()
    return bench


def a_spec(checkpoint: Path, config: SchedulerConfig, speculative: DraftModelSpec | None = None) -> EngineSpec:
    """Of the dummy runner."""
    return EngineSpec(
        engine_index=EngineIndex(0),
        epoch=Epoch(1),
        requests_address="",
        outputs_addresses={},
        checkpoint=str(checkpoint),
        load_format=LoadFormat.DUMMY,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        block_size=config.block_size,
        num_gpu_blocks_override=config.num_blocks,
        enable_prefix_caching=config.enable_prefix_caching,
        speculative=speculative,
        max_loras=config.max_loras,
    )
