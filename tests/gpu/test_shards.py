"""What a rank holds: what it reads, the size of its pool, and which sizes are refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import attrs
import msgspec
import pytest
import torch
from safetensors.torch import load_file

from gpu.agreed_pool import agreed_pool_size
from gpu.architectures import QkNorm
from gpu.config import ModelConfig
from gpu.cuda_model import DeviceParts, cuda_model
from gpu.groups.groups import Groups
from gpu.kv_pool import KvPoolSize
from gpu.layers.fixed_rows import FixedRowsLinear
from gpu.layers.parallel import RowParallelLinear
from gpu.linear_change import LinearChange, linear_change
from gpu.load_model import DTYPES, load_model
from gpu.models.decoder import Decoder
from gpu.shard import Shard, check_parallel
from gpu.shared_loader import shared_loader
from gpu.torch_model import TorchModel
from gpu.weights import WeightLoader, open_weights
from gpu.weights_sharing import share_checkpoint
from protocol.errors import StartError
from protocol.parallel import ParallelSpec, why_not
from scripts.gpu_checks.without_gpu import varlen_attention
from tests.gpu.test_sharded_models import BLOCK_SIZE, EP2, PP2, STEPS, TP2, TP2_PP2, TP3, TP6, rows_of, spec
from tests.gpu.test_shared_loader import Unreadable
from tests.helpers.foreign_checkpoints import make_foreign_checkpoint
from tests.helpers.stand_in_device import Recorder
from tests.helpers.thread_groups import run_ranks, thread_groups
from tests.helpers.tiny_checkpoints import MODELS, make_checkpoint, save_checkpoint

CPU = torch.device("cpu")
BLOCK_BYTES = 2 * BLOCK_SIZE * 8 * 4
"""Of one layer with one KV head: keys and values, of 8 float32."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Callable[[str], Path]:
    @cache
    def make(kind: str) -> Path:
        directory = tmp_path_factory.mktemp(kind)
        make_checkpoint(directory, kind)
        return directory

    return make


@pytest.mark.parametrize("kind", ["llama", "olmo2", "qwen3_moe", "phi3_sliding"])
@pytest.mark.parametrize("parallel", [TP2, PP2, TP2_PP2, EP2], ids=["tp2", "pp2", "tp2_pp2", "ep2"])
def test_each_rank_reads_its_share_and_what_all_need(checkpoint, kind, parallel):
    config = ModelConfig.read(checkpoint(kind))
    if config.experts is None:
        parallel = msgspec.structs.replace(parallel, experts=False)
    stored = load_file(checkpoint(kind) / "model.safetensors")
    cut = ("_proj.weight", "embed_tokens.weight", "lm_head.weight")
    if config.qk_norm is QkNorm.WHOLE:
        cut += ("q_norm.weight", "k_norm.weight")
    whole = sum(tensor.nbytes for name, tensor in stored.items() if not name.endswith(cut))

    def read_bytes(groups: Groups) -> int:
        loader = WeightLoader(open_weights(checkpoint(kind)), torch.float32, CPU, lambda _: None)
        Decoder.load(config, loader, groups=groups)
        return loader.read_bytes

    found = run_ranks(read_bytes, parallel)
    once = sum(tensor.nbytes for tensor in stored.values())
    assert sum(found) == once + (parallel.tensor - 1) * whole
    if parallel.pipeline == 1:
        assert max(found) - min(found) <= 0.02 * once


def test_the_pool_is_of_the_heads_and_layers_that_are_here_and_of_as_many_blocks_everywhere(checkpoint):
    def pool(groups: Groups) -> tuple[KvPoolSize, torch.Size]:
        room = 100_000 + 10_000 * groups.world.index
        wanted = spec(checkpoint("llama"), parallel=groups.parallel, kv_cache_memory_bytes=room)
        wanted = msgspec.structs.replace(wanted, num_gpu_blocks_override=None)
        model, size = load_model(wanted, lambda _: None, groups=groups)
        assert isinstance(model, TorchModel)
        return size, model.pool.keys.shape

    found = run_ranks(pool, TP2_PP2)
    # Three layers, two KV heads of 8: the first stage has one layer, the second two.
    blocks = 120_000 // (2 * BLOCK_BYTES)
    assert [size.num_blocks for size, _ in found] == [blocks] * 4
    assert [tuple(shape) for _, shape in found] == [(layers, blocks, BLOCK_SIZE, 1, 8) for layers in (1, 1, 2, 2)]
    assert [size.num_bytes for size, _ in found] == [
        blocks * layers * 2 * 4 * BLOCK_SIZE * 8 for layers in (1, 1, 2, 2)
    ]


def test_on_a_device_ranks_have_its_attention_and_neither_graphs_nor_what_is_compiled(checkpoint):
    """Torch's own stands for the device's."""

    @torch.inference_mode()
    def logits(groups: Groups) -> torch.Tensor:
        config = ModelConfig.read(checkpoint("gemma3"))
        shard = Shard.of(config, groups)
        wanted = spec(checkpoint("gemma3"), parallel=groups.parallel, max_num_seqs=4)
        loader = WeightLoader(open_weights(checkpoint("gemma3")), torch.float32, CPU, lambda _: None)
        decoder = Decoder.load(config, loader, groups=groups)
        size = agreed_pool_size(wanted, shard.held, torch.float32, CPU, groups.control)
        compiler = None if groups.world.size == 1 else "one that there is not"  # which raises, where it is asked for
        parts = DeviceParts(varlen_attention, Recorder(), compiler)
        model = cuda_model(wanted, config, decoder, size, 0, parts, shard)
        assert model.is_recorded(rows_of(STEPS[2])) == (groups.world.size == 1)
        return torch.cat([model.logits(model.compute(rows_of(step)).hidden) for step in STEPS])

    expected = logits(Groups())
    for found in run_ranks(logits, TP2):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_linears_that_ranks_share_are_changed_where_they_multiply(checkpoint):
    def load(groups: Groups) -> Decoder:
        loader = WeightLoader(open_weights(checkpoint("llama")), torch.float32, CPU, lambda _: None)
        config = ModelConfig.read(checkpoint("llama"))
        return Decoder.load(config, loader, LinearChange(fp8=False, fixed_rows=True), groups)

    for decoder in run_ranks(load, TP2):
        for layer in decoder.layers:
            for linear in (layer.attention.output, layer.mlp.down):
                assert isinstance(linear, RowParallelLinear)
                assert isinstance(linear.linear, FixedRowsLinear)
            assert isinstance(layer.attention.qkv, FixedRowsLinear)
        assert isinstance(decoder.head.linear, FixedRowsLinear)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_stages_map_what_the_weights_actor_shares(checkpoint, dtype):
    """It shares whole layers; of ranks that have parts of them each reads its own."""
    directory = checkpoint("llama")
    wanted = spec(directory, dtype=dtype, parallel=PP2)
    with ExitStack() as kept, torch.inference_mode():
        share = share_checkpoint(wanted, lambda _: None, kept)
        unreadable = Unreadable(open_weights(directory))
        for groups in thread_groups(PP2):
            loader = shared_loader(share, unreadable, DTYPES[dtype], lambda _: None, shares=2)
            assert loader is not None
            Decoder.load(ModelConfig.read(directory), loader, groups=groups)
        cut = msgspec.structs.replace(wanted, parallel=TP2)
        assert share_checkpoint(cut, lambda _: None, kept) is None


@pytest.mark.parametrize(
    ("kind", "parallel", "message"),
    [
        ("phi3_longrope", TP2, "has 3 query and 1 KV heads: --tensor-parallel-size 2 does not divide them; 1 and 3 do"),
        ("llama", TP3, "has 6 query and 2 KV heads: --tensor-parallel-size 3 does not divide them; 1, 2 and 6 do"),
        ("llama", ParallelSpec(pipeline=4), "--pipeline-parallel-size 4 is above the model's 3 layers"),
        ("llama", EP2, "--enable-expert-parallel is for models with experts, and this one has none"),
    ],
)
def test_what_does_not_divide_is_refused_with_what_does(checkpoint, kind, parallel, message):
    with pytest.raises(StartError, match=message):
        check_parallel(ModelConfig.read(checkpoint(kind)), parallel)


def test_more_ranks_than_inner_rows_are_refused(checkpoint):
    config = attrs.evolve(ModelConfig.read(checkpoint("llama")), intermediate_size=5)
    with pytest.raises(StartError, match="--tensor-parallel-size 6 is above the 5 inner rows"):
        check_parallel(config, TP6)


def test_the_sizes_of_nine_query_and_three_kv_heads():
    reason = why_not(TP2, 9, 3, 30, 0)
    assert reason is not None
    assert reason.endswith("9 query and 3 KV heads: --tensor-parallel-size 2 does not divide them; 1, 3 and 9 do")
    assert why_not(ParallelSpec(tensor=9, pipeline=30), 9, 3, 30, 0) is None


def test_the_cpu_kernels_leave_a_model_over_ranks_to_torch(tmp_path, caplog):
    save_checkpoint(tmp_path, MODELS["llama"]().to(torch.bfloat16))
    with caplog.at_level("INFO"):
        (model, _), _ = run_ranks(
            lambda groups: load_model(spec(tmp_path, dtype="auto", parallel=TP2), lambda _: None, groups=groups), TP2
        )
    assert model.dtype == "float32"
    assert "computing with torch in float32: the CPU kernels compute a model in one process only" in caplog.text


def test_transformers_code_runs_on_one_rank(tmp_path):
    make_foreign_checkpoint(tmp_path, "opt")
    with pytest.raises(
        StartError, match="--tensor-parallel-size is not for models that are computed with transformers"
    ):
        load_model(spec(tmp_path, parallel=TP2), lambda _: None, groups=thread_groups(TP2)[0])


def test_experts_that_are_to_be_spread_over_one_rank_are_all_there(checkpoint):
    spread, whole = (
        load_model(spec(checkpoint("qwen3_moe"), parallel=ParallelSpec(experts=experts)), lambda _: None)[0]
        for experts in (True, False)
    )
    rows = rows_of(STEPS[0])
    with torch.inference_mode():
        assert torch.equal(spread.compute(rows).hidden, whole.compute(rows).hidden)


def test_batch_invariance_is_not_promised_over_ranks():
    with pytest.raises(StartError, match="--batch-invariant is not for --tensor-parallel-size 2"):
        linear_change(spec(Path(), batch_invariant=True, parallel=TP2), torch.float32, torch.device("cuda"))
