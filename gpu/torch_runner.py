"""The runner that computes: weights, KV pool, and per slot what sampling needs. Made by gpu.runner.open_runner."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

import msgspec
import torch

from gpu.cards import take_card
from gpu.draft_model import DraftModel
from gpu.host_memory import give_back_freed_memory
from gpu.kv_frames import KvFrames
from gpu.kv_layout import kv_layout
from gpu.lacking_memory import lacking
from gpu.last_tokens import LastTokens
from gpu.load_draft_model import load_models
from gpu.load_report import Report
from gpu.lora_checkpoint import AdapterWeights, read_adapter
from gpu.model import Model
from gpu.moved_weights import MovedWeights
from gpu.pooling import pool_rows
from gpu.profiler import Profiler
from gpu.prompt_logprobs import prompt_logprobs
from gpu.ranks.lead import Lead, Load, open_lead
from gpu.resident_loras import ResidentLoras
from gpu.sampled_step import SampledStep
from gpu.sampler import Sampler
from gpu.sequence_slot import SequenceSlot
from gpu.shared_weights import WeightsOffer
from gpu.staging import Staging
from gpu.started_step import FinishedStep, StartedStep
from gpu.step_sampler import StepSampler
from gpu.torch_model import TorchModel
from gpu.torch_recording import TorchRecording
from protocol.errors import ConflictError
from protocol.ids import Slot
from protocol.kv import KvWindow
from protocol.lora import LoraId, LoraRequest
from protocol.operations import ProfileState, SleepTag
from protocol.spec import EngineFacts, EngineSpec
from protocol.step import PENDING, Row, StepPlan, StepResult

Reload = Callable[[], tuple[Model, DraftModel | None]]
"""Loads the same models once more, with KV pools of the same size."""


class TorchRunner:
    """Implements gpu.runner.Runner."""

    def __init__(
        self,
        model: Model,
        facts: EngineFacts,
        draft_model: DraftModel | None = None,
        reload: Reload | None = None,
        max_loras: int = 0,
        max_lora_rank: int = 1,
        kept: ExitStack | None = None,
        lead: Lead | None = None,
    ) -> None:
        """Without `reload` the weights are kept while it sleeps, however deep. `max_loras` and `max_lora_rank` are what
        the model was made for. `kept` is closed after the models. With `lead` the model lies over ranks."""
        self.facts = facts
        self._kept = kept or ExitStack()
        self._lead = lead
        self._frames: KvFrames | None = None
        self._loras: ResidentLoras[AdapterWeights] = ResidentLoras(max_loras)
        self._lora_modules = model.lora_modules
        self._max_lora_rank = max_lora_rank
        self._reload = reload
        self._asleep: set[SleepTag] = set()
        self._moved: MovedWeights | None = None
        self._profiler = Profiler(partial(TorchRecording, model.device))
        self._model: Model | None = model
        self._draft_model = draft_model
        self._slots: dict[Slot, SequenceSlot] = {}
        self._device = model.device
        self._staging = Staging(model.device)
        self._sampler = Sampler(model.device)
        self._step_sampler = StepSampler(self._sampler, self._staging)
        self._underway: list[SampledStep] = []

    @classmethod
    def load(
        cls,
        spec: EngineSpec,
        report: Report,
        offer: WeightsOffer | None = None,
        leading: AbstractContextManager[Lead] | None = None,
    ) -> TorchRunner:
        """Load the checkpoint that `spec` names, or map what is offered of it; over ranks, if it lies so, of which this
        process leads, by default as the spec says. Raises CheckpointError if it cannot be served, StartError if the
        device or the data type is not to be had here, RankLostError if a rank is not there."""
        take_card(spec, 0)
        with ExitStack() as entered:
            load: Load = load_models
            lead: Lead | None = None
            if spec.parallel.world > 1:
                lead = entered.enter_context(leading or open_lead(spec))
                load = lead.load_models
            with torch.inference_mode():
                model, size, draft_model = load(spec, report, None, offer)
            kept = entered.pop_all()
        report(1.0)
        facts = EngineFacts(
            max_model_len=size.max_model_len,
            num_blocks=size.num_blocks,
            block_size=size.block_size,
            vocab_size=model.vocab_size,
            device=str(model.device),
            dtype=model.dtype,
            weights_bytes=model.weights_bytes + (0 if draft_model is None else draft_model.weights_bytes),
            kv_cache_bytes=size.num_bytes + (0 if draft_model is None else draft_model.kv_cache_bytes),
            hidden_size=model.hidden_size,
            kv_layout=kv_layout(spec, model.block_kind, model.block_bytes),
        )
        same = msgspec.structs.replace(spec, num_gpu_blocks_override=size.num_blocks, max_model_len=size.max_model_len)
        draft_blocks = None if draft_model is None else draft_model.num_blocks

        def reload() -> tuple[Model, DraftModel | None]:
            model, _, draft_model = load(same, _ignore, draft_blocks, offer)
            return model, draft_model

        return cls(model, facts, draft_model, reload, spec.max_loras, spec.max_lora_rank, kept, lead)

    def step(self, plan: StepPlan) -> StepResult:
        return self.start(plan).result()

    def start(self, plan: StepPlan) -> StartedStep:
        if not self._profiler.is_recording:
            return self._start(plan)
        with self._profiler.span(f"step {plan.step}, {len(plan.rows)} rows"):
            result = self._start(plan).result()
        self._profiler.end_step()
        return FinishedStep(result)

    @torch.inference_mode()
    def _start(self, plan: StepPlan) -> StartedStep:
        assert self._model is not None, "step after close"
        assert not self._asleep, "step while asleep"
        for freed in plan.freed_slots:
            self._slots.pop(freed, None)
            if self._draft_model is not None:
                self._draft_model.free(freed)
        self._copy_blocks(plan)
        for new in plan.new_sequences:
            self._slots[new.slot] = SequenceSlot(new, self.facts.vocab_size, self._device)
        if not plan.rows:
            return FinishedStep(StepResult(plan.step, []))
        self._settle(plan)
        last_tokens = self._model.last_tokens if isinstance(self._model, TorchModel) else None
        rows = [self._resolved(row, last_tokens) for row in plan.rows]
        with self._profiler.span("compute"):
            computed = self._model.compute(rows, [self._slots[row.slot].lora_id for row in rows])
        with self._profiler.span("sample"):
            judged = list(prompt_logprobs(self._model, rows, self._slots, computed))
            trials, choice = self._step_sampler.sample(self._model, rows, self._slots, computed, last_tokens)
            pooling = pool_rows(self._model, rows, self._slots, computed, self._staging)
        if self._draft_model is None:
            started = SampledStep(plan.step, trials, choice, judged, pooling)
            self._underway = [*(one for one in self._underway if not one.is_known), started]
            return started
        if choice is not None:
            choice.take()
        sampled = [trial.result() for trial in trials]
        pooled = [] if pooling is None else pooling.take()
        # A row with a grammar never has the model's guesses, and one that broke has no token to go on from.
        masked = {row.slot for row in rows if row.grammar_bitmask is not None}
        going_on = [one.slot for one in sampled if one.error is None and one.slot not in masked]
        with self._profiler.span("draft"):
            drafts = self._draft_model.draft({slot: self._slots[slot] for slot in going_on})
        guesses = [drafts.get(one.slot, []) for one in sampled]
        return FinishedStep(StepResult(plan.step, sampled, judged, guesses, pooled))

    def attach_frames(self, window: KvWindow | None) -> None:
        self._let_go()
        is_ours = window is None or window.layout == self.facts.kv_layout
        mapped = window if is_ours else None
        if self._lead is not None:
            self._frames = self._lead.attach_frames(mapped)
        elif mapped is not None:
            self._frames = KvFrames(mapped)
        if not is_ours:
            raise OSError("the window is for blocks of another layout")

    def _let_go(self) -> None:
        if self._frames is not None:
            self._frames.close()
            self._frames = None

    def _copy_blocks(self, plan: StepPlan) -> None:
        if not plan.saves and not plan.loads:
            return
        assert self._model is not None, "copies after close"
        assert self._frames is not None, "copies without a window"
        with self._profiler.span("copy blocks"):
            self._model.copy_blocks(plan.saves, plan.loads, self._frames)

    @torch.inference_mode()
    def sleep(self, level: int) -> list[SleepTag]:
        for started in self._underway:
            started.result()
        self._underway = []
        if level > 0:
            self._slots = {}
            self._sampler.forget()
            self._release_kv()
        if level > 1 and self._reload is not None:
            self._drop_models()
            self._asleep.add(SleepTag.WEIGHTS)
        elif level > 0 and self._device.type == "cuda" and SleepTag.WEIGHTS not in self._asleep:
            self._moved = MovedWeights(tensor for model in self._models() for tensor in model.weights())
            self._asleep.add(SleepTag.WEIGHTS)
        if level > 0:
            self._give_back()
        return sorted(self._asleep)

    @torch.inference_mode()
    def wake(self, tags: Collection[SleepTag]) -> list[SleepTag]:
        if SleepTag.WEIGHTS in tags and SleepTag.WEIGHTS in self._asleep:
            self._wake_one("weights", self._restore_weights)
            self._asleep.discard(SleepTag.WEIGHTS)
        if SleepTag.KV_CACHE in tags:
            self._wake_one("KV cache", self._restore_kv)
            self._asleep.discard(SleepTag.KV_CACHE)  # models that are loaded later come with theirs
        return sorted(self._asleep)

    def _wake_one(self, what: str, restore: Callable[[], None]) -> None:
        """Raises ConflictError, with what was restored given back, if there is no memory for all of it."""
        reason = lacking(restore)
        if reason is None:
            return
        if SleepTag.KV_CACHE in self._asleep:
            self._release_kv()
        self._give_back()
        raise ConflictError(f"there is not enough memory to wake the {what}: {reason}")

    def _restore_weights(self) -> None:
        if self._moved is not None:
            self._moved.restore()
            self._moved = None
        elif self._model is None:
            assert self._reload is not None, "only what can be loaded again is dropped"
            self._model, self._draft_model = self._reload()
            reason = lacking(self._restore_loras)
            if reason is not None:
                self._drop_models()  # rather than computing without
                raise MemoryError(reason)
            if SleepTag.KV_CACHE in self._asleep:
                self._release_kv()

    def _restore_loras(self) -> None:
        assert self._model is not None, "adapters are for a model that is loaded"
        for lora_id in self._loras.ids:
            self._model.add_lora(lora_id, self._loras[lora_id])

    def _restore_kv(self) -> None:
        for model in self._models():
            model.restore_kv()

    def read_adapter(self, path: Path) -> AdapterWeights:
        return read_adapter(path, self._lora_modules, self._max_lora_rank)

    @torch.inference_mode()
    def add_lora(self, lora: LoraRequest, weights: AdapterWeights) -> None:
        """The host keeps it too, for when the model is loaded again."""
        model = self._model
        if not self._loras.add(lora.lora_id, weights) or model is None:
            return
        reason = lacking(lambda: model.add_lora(lora.lora_id, weights))
        if reason is not None:
            self.remove_lora(lora.lora_id)
            self._give_back()
            raise ConflictError(f"there is not enough memory for adapter {lora.name!r}: {reason}")

    def remove_lora(self, lora_id: LoraId) -> bool:
        is_there = self._loras.remove(lora_id) is not None
        if is_there and self._model is not None:
            self._model.remove_lora(lora_id)
        return is_there

    def loras(self) -> list[LoraId]:
        return self._loras.ids

    def start_profile(self, path: Path) -> ProfileState:
        return self._profiler.start(path)

    def stop_profile(self) -> ProfileState:
        return self._profiler.stop()

    def close(self) -> None:
        is_lost = self._lead is not None and self._lead.is_lost
        self._let_go()
        self._drop_models()
        if not is_lost:  # else there may be nobody to part from, and the process ends
            self._kept.close()
        self._slots = {}
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _models(self) -> list[Model]:
        """Those that are loaded."""
        drafting = [] if self._draft_model is None else [self._draft_model.model]
        return drafting if self._model is None else [self._model, *drafting]

    def _release_kv(self) -> None:
        if self._draft_model is not None:
            self._draft_model.release_kv()
        if self._model is not None:
            self._model.release_kv()
        self._asleep.add(SleepTag.KV_CACHE)

    def _drop_models(self) -> None:
        for model in self._models():
            model.close()
        self._model = self._draft_model = None
        self._moved = None

    def _give_back(self) -> None:
        give_back_freed_memory()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _settle(self, plan: StepPlan) -> None:
        """Wait for what the steps before sampled, if the host has to know it for this one: to hand tokens to a model
        that has them from nowhere else, to compare drafts with, or to look for the beginnings of bad words."""
        on_device = isinstance(self._model, TorchModel) and self._model.last_tokens is not None
        if on_device and not any(row.num_drafts or self._slots[row.slot].needs_history for row in plan.rows):
            return
        for started in self._underway:
            started.result()
        self._underway = []

    def _resolved(self, row: Row, last_tokens: LastTokens | None) -> Row:
        """The row with the token that its slot sampled in the step before, or with a mark for it, where the plan could
        not know it. A void row, whose slot has none, computes some other token into blocks that are still its own."""
        if row.token_ids[-1] != PENDING:
            return row
        slot = self._slots[row.slot]
        if last_tokens is None or slot.num_output_tokens == len(slot.output_token_ids):
            last = slot.last_token_id
        else:
            last = last_tokens.mark(row.slot)
        token_ids = [*row.token_ids[:-1], last]
        return Row(row.slot, row.start, token_ids, row.block_table, row.sample, row.grammar_bitmask)


def _ignore(progress: float) -> None:
    """Nobody watches it being loaded again."""
