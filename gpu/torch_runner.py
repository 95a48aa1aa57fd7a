"""The runner that computes: weights, KV pool, and per slot what sampling needs. Made by gpu.runner.open_runner."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

from gpu.batch import StepBatch, make_batch
from gpu.config import ModelConfig
from gpu.kv_pool import KvPool, free_bytes, kv_pool_size
from gpu.logprobs import token_logprobs
from gpu.models.decoder import Decoder
from gpu.runner import Report
from gpu.sampler import Choice, SamplingRow, choose
from gpu.sequence_slot import SequenceSlot
from gpu.weights import WeightLoader, open_weights
from protocol.errors import CheckpointError, StartError
from protocol.ids import Slot
from protocol.messages import TokenLogprobs
from protocol.spec import EngineFacts, EngineSpec
from protocol.step import PromptLogprobs, Row, Sampled, StepPlan, StepResult

PROMPT_LOGITS_ROWS = 64
"""Rows of logits that are held at once for prompt_logprobs: 64 × 150,000 float32 are 38 MB."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class TorchRunner:
    """Implements gpu.runner.Runner."""

    def __init__(self, model: Decoder, config: ModelConfig, pool: KvPool, facts: EngineFacts) -> None:
        self.facts = facts
        self._model: Decoder | None = model
        self._pool: KvPool | None = pool
        self._windows = config.windows
        self._slots: dict[Slot, SequenceSlot] = {}
        self._device = model.embedding.device
        self._dtype = model.embedding.dtype

    @classmethod
    def load(cls, spec: EngineSpec, report: Report) -> TorchRunner:
        """Load the checkpoint that `spec` names. Raises CheckpointError if it cannot be served, StartError if the
        device or the data type is not to be had here."""
        torch.set_num_threads(1)  # copying is bound by memory, and threads that wait for each other slow it down
        checkpoint = Path(spec.checkpoint)
        config = ModelConfig.read(checkpoint)
        device = pick_device(spec.device)
        dtype = pick_dtype(spec.dtype, config, device)
        with torch.inference_mode():
            loader = WeightLoader(open_weights(checkpoint), dtype, device, report)
            model = Decoder.load(config, loader)
            size = kv_pool_size(spec, config, dtype, *free_bytes(device))
            pool = KvPool(size, config, dtype, device)
        torch.set_num_threads(compute_threads(spec.threads))
        report(1.0)
        facts = EngineFacts(
            max_model_len=size.max_model_len,
            num_blocks=size.num_blocks,
            block_size=size.block_size,
            vocab_size=config.vocab_size,
            device=str(device),
            dtype=str(dtype).removeprefix("torch."),
            weights_bytes=loader.num_bytes,
            kv_cache_bytes=size.num_bytes,
        )
        return cls(model, config, pool, facts)

    @torch.inference_mode()
    def step(self, plan: StepPlan) -> StepResult:
        assert self._model is not None, "step after close"
        assert self._pool is not None
        for freed in plan.freed_slots:
            self._slots.pop(freed, None)
        for new in plan.new_sequences:
            self._slots[new.slot] = SequenceSlot(new, self.facts.vocab_size, self._device)
        if not plan.rows:
            return StepResult(plan.step, [])
        batch = make_batch(plan.rows, self._windows, self.facts.block_size, self._dtype, self._device)
        hidden = self._model.hidden_states(batch, self._pool)
        prompt_logprobs = list(self._prompt_logprobs(self._model, plan.rows, batch, hidden))
        return StepResult(plan.step, self._sample(self._model, plan.rows, batch, hidden), prompt_logprobs)

    def close(self) -> None:
        self._model = None
        self._pool = None
        self._slots = {}
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _sample(self, model: Decoder, rows: list[Row], batch: StepBatch, hidden: torch.Tensor) -> list[Sampled]:
        """Choose a token for each row that asks for one, and append it to its slot."""
        sampling = [(row, first) for row, first in zip(rows, batch.first_token, strict=True) if row.sample]
        if not sampling:
            return []
        logits = model.logits(hidden[[first + len(row.token_ids) - 1 for row, first in sampling]])
        slots = [self._slots[row.slot] for row, _ in sampling]
        asking = [i for i, slot in enumerate(slots) if slot.params.logprobs is not None]
        raw = logits[asking]  # a copy: choosing overwrites the logits
        choices = choose(
            logits,
            [
                SamplingRow(slot, row.start + len(row.token_ids), row.grammar_bitmask)
                for slot, (row, _) in zip(slots, sampling, strict=True)
            ],
        )
        logprobs = self._sampled_logprobs(raw, asking, choices, slots)
        sampled = []
        for index, (choice, slot) in enumerate(zip(choices, slots, strict=True)):
            if choice.error is None:
                slot.append(choice.token_id)
            sampled.append(Sampled(sampling[index][0].slot, choice.token_id, logprobs.get(index), choice.error))
        return sampled

    def _sampled_logprobs(
        self, raw: torch.Tensor, asking: list[int], choices: list[Choice], slots: list[SequenceSlot]
    ) -> dict[int, TokenLogprobs]:
        """By index of the sampling row; rows with an error have none."""
        kept = [place for place, index in enumerate(asking) if choices[index].error is None]
        if not kept:
            return {}
        indices = [asking[place] for place in kept]
        counts = [slots[index].params.logprobs or 0 for index in indices]
        found = token_logprobs(raw[kept], [choices[index].token_id for index in indices], counts)
        return dict(zip(indices, found, strict=True))

    def _prompt_logprobs(
        self, model: Decoder, rows: list[Row], batch: StepBatch, hidden: torch.Tensor
    ) -> Iterator[PromptLogprobs]:
        """For each row inside a prompt whose request asked, what its positions say of the prompt tokens after them."""
        for row, first in zip(rows, batch.first_token, strict=True):
            slot = self._slots[row.slot]
            targets = slot.prompt_token_ids[row.start + 1 : row.start + len(row.token_ids) + 1]
            if slot.params.prompt_logprobs is None or not targets:
                continue
            found: list[TokenLogprobs] = []
            for done in range(0, len(targets), PROMPT_LOGITS_ROWS):
                part = targets[done : done + PROMPT_LOGITS_ROWS]
                logits = model.logits(hidden[first + done : first + done + len(part)])
                found += token_logprobs(logits, part, [slot.params.prompt_logprobs] * len(part))
            yield PromptLogprobs(row.slot, row.start, found)


def pick_device(name: str) -> torch.device:
    """Raises StartError for a device that is unknown or not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise StartError(f"device {name!r} is none of auto, cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise StartError("device 'cuda' was asked for, and torch sees no CUDA device")
    return torch.device(name)


def pick_dtype(name: str, config: ModelConfig, device: torch.device) -> torch.dtype:
    """ "auto" is float32 on a CPU, whose half-precision arithmetic is slow, and the checkpoint's own type on a GPU."""
    if name == "auto":
        name = "float32" if device.type == "cpu" else config.dtype or "bfloat16"
    if name not in DTYPES:
        raise CheckpointError(f"data type {name!r} is none of {', '.join(DTYPES)}")
    return DTYPES[name]


def compute_threads(asked: int | None) -> int:
    """Threads of one operation: what was asked for, else all cores but the one that serves, if there are enough."""
    cores = len(os.sched_getaffinity(0))
    return asked or (cores - 1 if cores > 2 else cores)
