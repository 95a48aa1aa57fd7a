"""Models over ranks, which are threads here, against the same model on one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import attrs
import pytest
import torch

from gpu.attention_backend import GatherBackend
from gpu.batch import StepBatch
from gpu.config import ModelConfig
from gpu.groups.groups import Groups
from gpu.kv_pool import KvPool, KvPoolSize
from gpu.models.decoder import Decoder
from gpu.shard import Shard
from gpu.weights import WeightLoader, open_weights
from protocol.ids import Slot
from protocol.parallel import ParallelSpec
from protocol.step import Row
from tests.helpers.thread_groups import run_ranks
from tests.helpers.tiny_checkpoints import MODELS, VOCAB_SIZE, make_checkpoint

CPU = torch.device("cpu")
BLOCK_SIZE, BLOCKS_EACH = 4, 8
SIZE = KvPoolSize(3 * BLOCKS_EACH, BLOCK_SIZE, BLOCK_SIZE * BLOCKS_EACH, 0)
STEPS = (
    ((0, 0, 9),),
    ((0, 9, 8), (1, 0, 5)),
    ((0, 17, 1), (1, 5, 1)),
    ((1, 6, 9), (0, 18, 1), (2, 0, 1)),
    ((0, 19, 1), (1, 15, 1), (2, 1, 1)),
)
"""Rows: whose, from where on, how many tokens. They go beyond the windows of 11."""
TP2, TP3, TP6 = (ParallelSpec(tensor=size) for size in (2, 3, 6))
PP2, PP3 = (ParallelSpec(pipeline=size) for size in (2, 3))
TP2_PP2 = ParallelSpec(tensor=2, pipeline=2)
EP2, EP2_PP2 = ParallelSpec(tensor=2, experts=True), ParallelSpec(tensor=2, pipeline=2, experts=True)
WAYS = {"tp2": TP2, "tp6": TP6, "pp2": PP2, "tp2_pp2": TP2_PP2}
"""In tp6 three ranks each have the same one of two KV heads."""
OTHER_WAYS = {
    "llama": {"pp3": PP3},
    "phi3_longrope": {"tp3": TP3, "pp2": PP2},  # three heads, and one for keys and values
    **{kind: {"ep2": EP2, "ep2_pp2": EP2_PP2} for kind in ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss")},
}
CASES = [
    pytest.param(kind, ways[way], id=f"{kind}-{way}")
    for kind in sorted(MODELS)
    for ways in [({} if kind == "phi3_longrope" else WAYS) | OTHER_WAYS.get(kind, {})]
    for way in ways
]


@attrs.frozen(eq=False)
class Rank:
    """What one rank of a model computes with."""

    decoder: Decoder
    backend: GatherBackend
    pool: KvPool
    groups: Groups
    loader: WeightLoader

    @classmethod
    def load(cls, directory: Path, groups: Groups) -> Rank:
        config = ModelConfig.read(directory)
        held = Shard.of(config, groups).held
        loader = WeightLoader(open_weights(directory), torch.float32, CPU, lambda _: None)
        decoder = Decoder.load(config, loader, groups=groups)
        backend = GatherBackend(held.windows, BLOCK_SIZE, torch.float32, CPU)
        return cls(decoder, backend, KvPool(SIZE, held, torch.float32, CPU), groups, loader)

    def step(self, rows: list[Row]) -> torch.Tensor:
        """Logits of all tokens; on a rank of a later stage, its hidden states."""
        batch, pipeline = self.backend.batch(rows), self.groups.pipeline
        x = self.decoder.run_layers(batch, self._taken(batch), self.pool)
        if pipeline.size == 1:
            return self.decoder.logits(x)
        pipeline.send(x, (pipeline.index + 1) % pipeline.size)
        if pipeline.index > 0:
            return x
        return self.decoder.logits(pipeline.receive(torch.empty_like(x), pipeline.size - 1))

    def _taken(self, batch: StepBatch) -> torch.Tensor:
        pipeline = self.groups.pipeline
        if pipeline.index == 0:
            return self.decoder.embed(batch)
        return pipeline.receive(
            self.decoder.embedding.new_empty(len(batch.token_ids), self._hidden), pipeline.index - 1
        )

    @property
    def _hidden(self) -> int:
        return self.decoder.embedding.shape[1]


def rows_of(step: tuple[tuple[int, int, int], ...]) -> list[Row]:
    return [
        Row(
            Slot(slot),
            start,
            [(7 * p * p + 3 * p + 5 * slot) % VOCAB_SIZE for p in range(start, start + count)],
            list(range(slot * BLOCKS_EACH, (slot + 1) * BLOCKS_EACH)),
            True,
        )
        for slot, start, count in step
    ]


@torch.inference_mode()
def run(directory: Path, groups: Groups) -> list[torch.Tensor]:
    rank = Rank.load(directory, groups)
    return [rank.step(rows_of(step)).clone() for step in STEPS]


@pytest.fixture(scope="module")
def checkpoint_of(tmp_path_factory) -> Callable[[str], Path]:
    torch.set_num_threads(1)  # the tensors are tiny, and threads would wait for each other

    @cache
    def make(kind: str) -> Path:
        directory = tmp_path_factory.mktemp(kind)
        make_checkpoint(directory, kind)
        return directory

    return make


@pytest.fixture(scope="module")
def logits_of(checkpoint_of) -> Callable[[str], list[torch.Tensor]]:
    """On one rank, by kind."""
    return cache(lambda kind: run(checkpoint_of(kind), Groups()))


@pytest.mark.parametrize(("kind", "parallel"), CASES)
def test_ranks_have_the_logits_of_one(checkpoint_of, logits_of, kind, parallel):
    results = run_ranks(lambda groups: run(checkpoint_of(kind), groups), parallel)
    first, *others = results[: parallel.tensor]
    for found, expected in zip(first, logits_of(kind), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    for logits in others:
        assert all(torch.equal(one, other) for one, other in zip(logits, first, strict=True))
