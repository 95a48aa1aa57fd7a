"""A Runner without torch and without weights: deterministic, cheap, and strict about the plans that it is given.

`--load-format dummy` serves with it, and the scheduler's tests use it as their judge. Its KV entries are hashes that
it really keeps in the plan's blocks: a scheduler that mixes blocks up gets other tokens than it should, or a PlanError.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any, final

from gpu.fake_blocks import STATE_BYTES, FakeBlocks
from gpu.fake_model import FakeModel, mix, read_fake_model, read_json
from gpu.fake_sampler import logprobs_of, sample
from gpu.fake_slots import FakeSlot, FakeSlots, PlanError
from gpu.kv_frames import KvFrames
from gpu.kv_layout import kv_layout
from gpu.lora_checkpoint import AdapterWeights
from gpu.lora_config import read_lora_config
from gpu.lora_file import LoraFile
from gpu.profiler import Profiler
from gpu.resident_loras import ResidentLoras
from gpu.started_step import FinishedStep
from gpu.step_recording import StepRecording
from protocol.kv import KvWindow
from protocol.lora import NO_LORA, LoraId, LoraRequest
from protocol.messages import TokenLogprobs
from protocol.operations import ProfileState, SleepTag
from protocol.spec import DraftModelSpec, EngineFacts, EngineSpec
from protocol.step import Pooled, PromptLogprobs, Row, Sampled, StepPlan, StepResult

DEFAULT_MAX_MODEL_LEN = 2048
"""Tokens, where neither the spec nor config.json says."""
DEFAULT_HIDDEN_SIZE = 64
"""Numbers in an embedding, where config.json does not say."""
MAX_BLOCKS = 65536
"""Blocks are cheap here, but the scheduler lists the free ones."""
SILENT_EVERY, WRONG_EVERY = 7, 5
"""Its draft model says nothing, or something else than the likeliest token, after one of so many contexts."""


@final
class FakeRunner:
    """Fulfils gpu.runner.Runner. Takes as long per step as the spec says; `close` from another thread cuts that short.

    Raises CheckpointError for a directory without a config.json that names vocab_size.
    """

    def __init__(self, spec: EngineSpec) -> None:
        checkpoint = Path(spec.checkpoint)
        config = read_json(checkpoint / "config.json")
        self.facts = _facts(spec, config)
        self._spec = spec
        self._num_drafts = (
            spec.speculative.num_speculative_tokens if isinstance(spec.speculative, DraftModelSpec) else 0
        )
        self._model: FakeModel = read_fake_model(checkpoint, config)
        self._slots = FakeSlots(spec.max_num_seqs, self.facts)
        self._loras: ResidentLoras[AdapterWeights] = ResidentLoras(spec.max_loras)
        self._blocks = FakeBlocks(self.facts.num_blocks, self.facts.block_size)
        self._frames: KvFrames | None = None
        self._last_step = -1
        self._asleep: set[SleepTag] = set()
        self._profiler = Profiler(StepRecording)
        self._closed = threading.Event()

    def step(self, plan: StepPlan) -> StepResult:
        """Raises PlanError for a plan that must not be."""
        with self._profiler.span(f"step {plan.step}, {len(plan.rows)} rows"):
            result = self._step(plan)
        self._profiler.end_step()
        return result

    def _step(self, plan: StepPlan) -> StepResult:
        previous_step = self._last_step
        self._check(plan)
        for slot in plan.freed_slots:
            self._slots.free(slot)
        self._copy_blocks(plan)
        for new in plan.new_sequences:
            self._slots.open(new)
        # All tables first: two rows with one block are to be found out before either computes.
        resolved = [self._slots.resolve(row, previous_step) for row in plan.rows]
        rows = [(row, self._slots.check_row(row)) for row in resolved]
        for _, held in rows:
            if held.lora_id != NO_LORA and held.lora_id not in self._loras:
                raise PlanError(f"adapter {held.lora_id} is none of {self.loras()}: {held}")
        for row, held in rows:
            if held.begins_with_blocks:
                self._check_prefix(row, held)
                held.begins_with_blocks = False
        sampled: list[Sampled] = []
        prompt_logprobs: list[PromptLogprobs] = []
        drafts: list[list[int]] = []
        pooled: list[Pooled] = []
        for row, held in rows:
            states = self._compute(row, held)
            if held.params.prompt_logprobs is not None:
                prompt_logprobs += self._prompt_logprobs(row, held, states, held.params.prompt_logprobs)
            if held.pooling is not None and (vector := held.pooling.take(row, states)) is not None:
                pooled.append(vector)
            if row.sample:
                one = self._sample_all(row, held, states)
                sampled.append(one)
                held.sampled_in = plan.step
                if self._num_drafts:
                    drafts.append(self._drafts(row, one, states))
        if self._spec.dummy_step_seconds > 0:
            self._closed.wait(self._spec.dummy_step_seconds)
        return StepResult(plan.step, sampled, prompt_logprobs, drafts, pooled)

    def start(self, plan: StepPlan) -> FinishedStep:
        return FinishedStep(self.step(plan))

    def _copy_blocks(self, plan: StepPlan) -> None:
        if not plan.saves and not plan.loads:
            return
        frames = self._frames
        if frames is None:
            raise PlanError(f"step {plan.step} has copies, but there is no window")
        self._blocks.save(plan.saves, frames)
        for copy in plan.loads:
            self._slots.check_unowned(copy.block)
        self._blocks.load(plan.loads, frames)

    def attach_frames(self, window: KvWindow | None) -> None:
        if self._frames is not None:
            self._frames.close()
            self._frames = None
        if window is not None and window.layout != self.facts.kv_layout:
            raise OSError("the window is for blocks of another layout")
        if window is not None:
            self._frames = KvFrames(window)

    def sleep(self, level: int) -> list[SleepTag]:
        if level > 0:
            self._blocks.clear()
            self._asleep.add(SleepTag.KV_CACHE)
        if level > 1:
            self._asleep.add(SleepTag.WEIGHTS)  # of which there are none
        return sorted(self._asleep)

    def wake(self, tags: Collection[SleepTag]) -> list[SleepTag]:
        self._asleep -= set(tags)
        return sorted(self._asleep)

    def read_adapter(self, path: Path) -> AdapterWeights:
        """There is no model whose shapes its tensors would have to have."""
        read_lora_config(path, self._spec.max_lora_rank)
        LoraFile.open(path).close()
        return AdapterWeights({})

    def add_lora(self, lora: LoraRequest, weights: AdapterWeights) -> None:
        self._loras.add(lora.lora_id, weights)

    def remove_lora(self, lora_id: LoraId) -> bool:
        return self._loras.remove(lora_id) is not None

    def loras(self) -> list[LoraId]:
        return self._loras.ids

    def start_profile(self, path: Path) -> ProfileState:
        return self._profiler.start(path)

    def stop_profile(self) -> ProfileState:
        return self._profiler.stop()

    def close(self) -> None:
        self._closed.set()
        self._blocks.clear()
        self._frames = None  # without waiting for a step that uses them in another thread

    def _check(self, plan: StepPlan) -> None:
        if self._closed.is_set():
            raise PlanError("the runner is closed")
        if self._asleep:
            raise PlanError(f"step {plan.step} comes while {', '.join(sorted(self._asleep))} sleep")
        if plan.step <= self._last_step:
            raise PlanError(f"step {plan.step} comes after step {self._last_step}")
        self._last_step = plan.step
        if len({row.slot for row in plan.rows}) < len(plan.rows):
            raise PlanError(f"a slot has two rows: {[row.slot for row in plan.rows]}")
        num_tokens = sum(len(row.token_ids) for row in plan.rows)
        if num_tokens > self._spec.max_num_batched_tokens:
            raise PlanError(f"{num_tokens} tokens in a step, but the limit is {self._spec.max_num_batched_tokens}")

    def _compute(self, row: Row, held: FakeSlot) -> list[int]:
        """Write the row's states into its blocks, each from the one that its blocks hold before it."""
        state = (
            self._blocks.state_at(row.start - 1, row.block_table)
            if row.start > 0
            else self._model.first_state(held.lora_id)
        )
        states = []
        for position, token_id in enumerate(row.token_ids, row.start):
            state = self._model.next_state(state, token_id)
            states.append(state)
            self._blocks.write(position, row.block_table, state)
        held.num_computed += len(row.token_ids)
        return states

    def _check_prefix(self, row: Row, held: FakeSlot) -> None:
        """What a new sequence finds in its blocks must be what it would have computed itself, and computed by now."""
        state = self._model.first_state(held.lora_id)
        for position, token_id in enumerate(held.tokens_from(0, row.start)):
            state = self._model.next_state(state, token_id)
            block = row.block_table[position // self.facts.block_size]
            if block not in self._blocks or self._blocks.state_at(position, row.block_table) != state:
                raise PlanError(f"block {block} does not hold the KV of position {position}: {held}")

    def _prompt_logprobs(self, row: Row, held: FakeSlot, states: list[int], count: int) -> list[PromptLogprobs]:
        nexts = held.prompt[row.start + 1 : row.start + 1 + len(row.token_ids)]
        predicting = zip(states, nexts, strict=False)
        rows = [logprobs_of(self._model.logits(state), token_id, count) for state, token_id in predicting]
        return [PromptLogprobs(row.slot, row.start, rows)] if rows else []

    def _sample_all(self, row: Row, held: FakeSlot, states: list[int]) -> Sampled:
        """The token after the row's known ones, and one more behind each draft that was right."""
        drafts = row.token_ids[len(row.token_ids) - row.num_drafts :]
        first, *behind_drafts = states[len(states) - row.num_drafts - 1 :]
        one = self._sample(row, held, first, row.grammar_bitmask)
        accepted: list[TokenLogprobs | None] = []
        for draft, state in zip(drafts, behind_drafts, strict=True):
            if one.error is not None or one.token_id != draft:
                break
            accepted.append(one.logprobs)
            one = self._sample(row, held, state, row.bitmask_behind(len(accepted)))
        held.num_computed -= row.num_drafts - len(accepted)
        logprobs = [each for each in accepted if each is not None]
        return Sampled(row.slot, one.token_id, one.logprobs, one.error, len(accepted), logprobs)

    def _drafts(self, row: Row, one: Sampled, states: list[int]) -> list[int]:
        """A draft model's guesses after the sampled token: mostly the likeliest tokens."""
        state = self._model.next_state(states[len(states) - row.num_drafts - 1 + one.num_accepted], one.token_id)
        if one.error is not None or mix(state, SILENT_EVERY) % SILENT_EVERY == 0:
            return []
        drafts = []
        for _ in range(self._num_drafts):
            draft = self._model.logits(state).best(1)[0]
            if mix(state, WRONG_EVERY) % WRONG_EVERY == 0:
                draft = (draft + 1) % self.facts.vocab_size
            drafts.append(draft)
            state = self._model.next_state(state, draft)
        return drafts

    def _sample(self, row: Row, held: FakeSlot, state: int, bitmask: bytes | None) -> Sampled:
        if held.is_void:
            return Sampled(row.slot, 0, error="the token before this one could not be sampled")
        logits = self._model.logits(state)
        token_id = sample(self._model, logits, held.params, held.prompt, held.output, bitmask)
        if token_id is None:
            held.is_void = True
            return Sampled(row.slot, 0, error="no token is allowed here: grammar, bias and limits exclude each other")
        held.output.append(token_id)
        count = held.params.logprobs
        logprobs: TokenLogprobs | None = None if count is None else logprobs_of(logits, token_id, count)
        return Sampled(row.slot, token_id, logprobs)

    def __repr__(self) -> str:
        return f"<FakeRunner step {self._last_step}: {self._slots!r}>"


def _facts(spec: EngineSpec, config: dict[str, Any]) -> EngineFacts:
    own_limit = config.get("max_position_embeddings", DEFAULT_MAX_MODEL_LEN)
    max_model_len = spec.max_model_len or own_limit
    blocks_per_sequence = -(-max_model_len // spec.block_size)
    num_blocks = spec.num_gpu_blocks_override
    if num_blocks is None:
        num_blocks = max(blocks_per_sequence, min(MAX_BLOCKS, blocks_per_sequence * spec.max_num_seqs))
    elif spec.max_model_len is None:
        max_model_len = min(own_limit, num_blocks * spec.block_size)
    return EngineFacts(
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        block_size=spec.block_size,
        vocab_size=config.get("vocab_size", 0),
        device="none",
        dtype="none",
        weights_bytes=0,
        kv_cache_bytes=0,
        hidden_size=config.get("hidden_size", DEFAULT_HIDDEN_SIZE),
        kv_layout=kv_layout(spec, "dummy", [STATE_BYTES * spec.block_size]),
    )
