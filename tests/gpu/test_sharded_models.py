"""Models over ranks, which are threads here, against the same model on one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import msgspec
import pytest
import torch

from app.checkpoints.gguf_checkpoint import open_gguf
from gpu.groups.groups import Groups
from protocol.ids import EngineIndex, Epoch, Slot
from protocol.parallel import ParallelSpec
from protocol.spec import EngineSpec
from protocol.step import Row
from tests.gpu.test_stacked_experts import quantised
from tests.gpu.test_torch_loras import KINDS as ADAPTED
from tests.gpu.test_torch_loras import logits_in_steps, prompt, with_adapters
from tests.helpers.gguf_models import KINDS, write_model
from tests.helpers.peft_adapters import PeftOracle
from tests.helpers.staged_model import StagedModel
from tests.helpers.thread_groups import run_ranks
from tests.helpers.tiny_checkpoints import MODELS, VOCAB_SIZE, make_checkpoint, save_checkpoint

BLOCK_SIZE, BLOCKS_EACH = 4, 8
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


def spec(checkpoint: Path, **changes: object) -> EngineSpec:
    sizes = {"block_size": 4, "num_gpu_blocks_override": 3 * BLOCKS_EACH, "device": "cpu", "threads": 1} | changes
    return EngineSpec(EngineIndex(0), Epoch(1), "", {}, str(checkpoint), **({"dtype": "float32"} | sizes))


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
    """The logits of all tokens, by step."""
    model = StagedModel.load(spec(directory, parallel=groups.parallel), groups)
    return [model.logits(model.compute(rows_of(step)).hidden).clone() for step in STEPS]


def assert_as_one(results: list[list[torch.Tensor]], parallel: ParallelSpec, expected: list[torch.Tensor]) -> None:
    """The first stage's ranks, of all ranks' results, have these logits, and all the same ones."""
    first, *others = results[: parallel.tensor]
    for logits, wanted in zip(first, expected, strict=True):
        torch.testing.assert_close(logits, wanted, atol=1e-4, rtol=1e-4)
    for logits in others:
        assert all(torch.equal(one, other) for one, other in zip(logits, first, strict=True))


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
    assert_as_one(results, parallel, logits_of(kind))


@pytest.mark.parametrize("kind", ["phi3_sliding", "olmo2", "qwen2_moe", "gemma2"])
@pytest.mark.parametrize("parallel", [TP2, EP2_PP2], ids=["tp2", "ep2_pp2"])
def test_ranks_have_the_logits_of_one_in_gguf(kind, parallel, tmp_path):
    architecture, make = KINDS[kind]
    save_checkpoint(tmp_path / "checkpoint", make())
    write_model(tmp_path / "model.gguf", tmp_path / "checkpoint", architecture)
    converted = open_gguf(tmp_path / "model.gguf", tmp_path / "cache", lambda *_: None)
    if kind != "qwen2_moe":
        parallel = msgspec.structs.replace(parallel, experts=False)
    results = run_ranks(lambda groups: run(converted, groups), parallel)
    assert_as_one(results, parallel, run(converted, Groups()))


@pytest.mark.parametrize("parallel", [TP2, TP6, EP2], ids=["tp2", "tp6", "ep2"])
def test_ranks_have_the_logits_of_one_in_mxfp4(parallel, tmp_path):
    """Inner rows are cut within its blocks too."""
    quantised(tmp_path)
    results = run_ranks(lambda groups: run(tmp_path, groups), parallel)
    assert_as_one(results, parallel, run(tmp_path, Groups()))


def test_in_half_precision_ranks_have_the_logits_of_one_but_for_rounding(checkpoint_of):
    def run_half(groups: Groups) -> torch.Tensor:
        with torch.inference_mode():
            half = spec(checkpoint_of("llama"), parallel=groups.parallel, dtype="bfloat16")
            model = StagedModel.load(half, groups)
            return model.logits(model.compute(rows_of(STEPS[0])).hidden)

    first, _ = run_ranks(run_half, TP2)
    expected = run_half(Groups())
    assert (first - expected).norm() < 0.03 * expected.norm()


@pytest.mark.parametrize(
    ("kind", "parallel"),
    [
        ("llama_biases", TP2_PP2),
        ("llama_biases", TP6),
        ("phi3_sliding", TP2),
        ("phi3_sliding", TP6),
        ("glm4", TP2_PP2),
        ("qwen2_moe", EP2),
        ("gpt_oss", TP2),
    ],
)
def test_adapters_over_ranks_are_those_of_one(kind, parallel, checkpoint_of, tmp_path):
    first, second = ADAPTED[kind]
    oracle = PeftOracle(make_checkpoint(tmp_path / "model", kind), tmp_path / "adapters", first=first, second=second)
    prompts = {name: prompt(20 + i) for i, name in enumerate(("second", None, "first"))}

    def adapted(groups: Groups) -> list[torch.Tensor]:
        wanted = spec(tmp_path / "model", parallel=groups.parallel, max_loras=2, num_gpu_blocks_override=40)
        model = with_adapters(StagedModel.load(wanted, groups), oracle)
        return list(logits_in_steps(model, prompts, (3, 18, 19, 20)).values())

    assert_as_one(run_ranks(adapted, parallel), parallel, adapted(Groups()))
