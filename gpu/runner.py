"""What the step loop needs of whatever computes: the interface that torch_runner and fake_runner both fulfil."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from gpu.load_report import Report, enter
from gpu.lora_checkpoint import AdapterWeights
from gpu.shared_weights import WeightsOffer
from gpu.started_step import StartedStep
from protocol.kv import KvWindow
from protocol.lora import LoraId, LoraRequest
from protocol.operations import ProfileState, SleepTag
from protocol.phases import IMPORT
from protocol.spec import EngineFacts, EngineSpec
from protocol.step import StepPlan, StepResult


class Runner(Protocol):
    """Holds weights, the KV pool, and per slot a sequence's sampling state.

    Made by `open_runner`, which may take long and raises CheckpointError for weights that cannot be served. All
    methods are synchronous and are called from one thread, one at a time. `step` is deterministic: the same plans in
    the same order give the same results.
    """

    facts: EngineFacts

    def step(self, plan: StepPlan) -> StepResult:
        """Run the plan. A fault of one row (its logits are NaN, say) comes back as that row's `Sampled.error`;
        an exception means that the whole runner is broken."""

    def start(self, plan: StepPlan) -> StartedStep:
        """Run the plan as far as it goes without waiting for a device. The next one may be started before this one has
        its result: what this one samples, the device knows. Whoever starts asks for each result, in order."""

    def sleep(self, level: int) -> list[SleepTag]:
        """Give memory back: on level 1 the KV cache's, and on a GPU the weights' (which are kept in the host's), on
        level 2 the weights' altogether. Returns what is without memory now, which never becomes less by this. No step
        comes before all of it is woken, and all that was in a slot comes anew then: it has lost its blocks. Level 0
        changes nothing."""

    def wake(self, tags: Collection[SleepTag]) -> list[SleepTag]:
        """Take back the memory of these; what was dropped is read again, and the KV cache is empty. Returns what is
        still without. Raises CheckpointError for weights that cannot be read any more, ConflictError if there is no
        memory for them: what could not be woken sleeps on, and holds none."""

    def attach_frames(self, window: KvWindow | None) -> None:
        """Map this window, of this runner's layout, instead of the one before; None only lets go of that. Plans have
        copies only while there is one; it stays through sleep. Called between steps. Raises OSError, and has none, if
        it cannot be mapped."""

    def read_adapter(self, path: Path) -> AdapterWeights:
        """Read a PEFT checkpoint directory, for `add_lora`. May be called from any thread, beside all other methods.
        Raises BadRequestError naming what is missing there, or does not fit the model or the spec's max_lora_rank."""

    def add_lora(self, lora: LoraRequest, weights: AdapterWeights) -> None:
        """Sequences may name the adapter from now on; one that is there already changes nothing. It stays through
        sleep, however deep. Raises BadRequestError if there are as many as the spec's max_loras, ConflictError if the
        device has no memory for it."""

    def remove_lora(self, lora_id: LoraId) -> bool:
        """Forget the adapter, which no row names from now on; False if it was not there."""

    def loras(self) -> list[LoraId]:
        """The adapters that are there, in the order in which they came."""

    def start_profile(self, path: Path) -> ProfileState:
        """Record the steps from now on. Raises ConflictError if a profile is being recorded already."""

    def stop_profile(self) -> ProfileState:
        """Write the profile to its path. Raises ConflictError if there is none."""

    def close(self) -> None:
        """Give back memory and device. Idempotent."""


def open_runner(spec: EngineSpec, report: Report, offer: WeightsOffer | None = None) -> Runner:
    """Load what `spec` asks for, or map what is offered of it: the dummy runner without importing torch, else the torch
    runner."""
    from protocol.spec import LoadFormat

    if spec.load_format is LoadFormat.DUMMY:
        from gpu.fake_runner import FakeRunner

        return FakeRunner(spec)
    enter(report, IMPORT)
    from gpu.torch_runner import TorchRunner

    return TorchRunner.load(spec, report, offer)
