"""How many blocks there are, and that the pool gives back what was stored."""

from __future__ import annotations

import pytest
import torch

from gpu import kv_pool
from gpu.config import ModelConfig
from gpu.kv_dtype import kv_dtype
from gpu.kv_pool import KvPool, KvPoolSize, free_bytes, kv_block_bytes, kv_pool_size
from protocol.errors import CheckpointError, StartError
from protocol.ids import EngineIndex, Epoch
from protocol.spec import EngineSpec

CPU = torch.device("cpu")
CONFIG = ModelConfig.from_dict(
    {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 100,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 100,
    }
)
BLOCK = 2 * 2 * 16 * 2 * 8 * 4  # keys and values, layers, block_size, kv_heads, head_dim, float32


def size(free: int = 1000, default: int = 20, **changes: object) -> KvPoolSize:
    """With `free` and `default` in blocks."""
    spec = EngineSpec(EngineIndex(0), Epoch(1), "", {}, "", **changes)
    return kv_pool_size(spec, CONFIG, torch.float32, free * BLOCK, default * BLOCK)


def test_a_block_counts_keys_and_values_of_all_layers():
    assert kv_block_bytes(CONFIG, 16, torch.float32) == BLOCK
    assert kv_block_bytes(CONFIG, 16, torch.bfloat16) == BLOCK // 2


def test_the_override_goes_before_bytes_and_bytes_before_the_default():
    both = {"num_gpu_blocks_override": 9, "kv_cache_memory_bytes": 12 * BLOCK + 1}
    assert size(**both).num_blocks == 9
    assert size(kv_cache_memory_bytes=12 * BLOCK + 1).num_blocks == 12
    assert size().num_blocks == 20
    assert size().num_bytes == 20 * BLOCK


def test_the_default_grows_to_hold_one_sequence_and_stops_at_what_is_free():
    assert size(default=2).num_blocks == 7
    assert size(default=2, max_model_len=33).num_blocks == 3
    cut = size(default=2, free=4)
    assert (cut.num_blocks, cut.max_model_len) == (4, 64)


def test_the_context_is_cut_to_what_the_pool_holds():
    assert size().max_model_len == 100
    assert size(max_model_len=50).max_model_len == 50
    assert size(max_model_len=50, num_gpu_blocks_override=2).max_model_len == 32
    assert size(num_gpu_blocks_override=2).max_model_len == 32


def test_impossible_wishes_are_refused_with_their_numbers():
    with pytest.raises(CheckpointError, match="--max-model-len 101 is above the model's own limit of 100 tokens: le"):
        size(max_model_len=101)
    with pytest.raises(CheckpointError, match=f"--kv-cache-memory-bytes .* {BLOCK - 1} bytes, .* takes {BLOCK}: raise"):
        size(kv_cache_memory_bytes=BLOCK - 1)
    with pytest.raises(CheckpointError, match=f"may have 0 bytes of the memory that is free .* takes {BLOCK}: end"):
        size(free=0)


def test_the_machine_has_memory_to_give():
    most, default = free_bytes(CPU)
    assert 0 < default <= most
    shared, default_of_each = free_bytes(CPU, num_engines=4)
    assert 0 < default_of_each <= shared < most / 3


def test_gather_gives_back_what_was_written_block_by_block():
    pool = KvPool(size(num_gpu_blocks_override=5), CONFIG, torch.float32, CPU)
    keys, values = torch.randn(3, 2, 8), torch.randn(3, 2, 8)
    slots = torch.tensor([3 * 16 + 15, 1 * 16, 0])
    pool.write(1, slots, keys, values)
    found_keys, found_values = pool.gather(1, torch.tensor([1, 3, 0]))
    assert found_keys.shape == (48, 2, 8)
    assert torch.equal(found_keys[[31, 0, 32]], keys)
    assert torch.equal(found_values[[31, 0, 32]], values)
    assert found_keys.count_nonzero() == keys.numel()
    assert pool.gather(0, torch.tensor([1, 3, 0]))[0].count_nonzero() == 0


def test_clear_empties_the_blocks_in_every_layer_and_no_other():
    pool = KvPool(size(num_gpu_blocks_override=4), CONFIG, torch.float32, CPU)
    pool.keys.fill_(torch.nan)
    pool.values.fill_(torch.nan)
    pool.clear(torch.tensor([1, 3]))
    for tensor in (pool.keys, pool.values):
        assert tensor[:, [1, 3]].count_nonzero() == 0
        assert tensor[:, [0, 2]].isnan().all()


@pytest.mark.parametrize("name", ["fp8", "fp8_e4m3", "fp8_e5m2"])
def test_an_8_bit_pool_holds_twice_the_blocks_and_nearly_the_same_numbers(name):
    kept_in = kv_dtype(name, torch.bfloat16)
    assert kv_block_bytes(CONFIG, 16, kept_in) == kv_block_bytes(CONFIG, 16, torch.bfloat16) // 2
    pool = KvPool(size(num_gpu_blocks_override=3), CONFIG, kept_in, CPU, torch.bfloat16)
    keys, values = (torch.randn(3, 2, 8).to(torch.bfloat16) for _ in range(2))
    pool.write(1, torch.tensor([47, 16, 0]), keys, values)
    found_keys, found_values = pool.gather(1, torch.tensor([2, 1, 0]))
    assert found_keys.dtype == found_values.dtype == torch.bfloat16
    mantissa = {torch.float8_e4m3fn: 2**-4, torch.float8_e5m2: 2**-3}[kept_in]  # half a unit in the last place
    torch.testing.assert_close(found_keys[[15, 16, 32]], keys, rtol=mantissa, atol=2**-9)
    torch.testing.assert_close(found_values[[15, 16, 32]], values, rtol=mantissa, atol=2**-9)
    pool.clear(torch.tensor([0, 1, 2]))
    assert pool.gather(1, torch.tensor([0, 1, 2]))[0].count_nonzero() == 0


def test_what_8_bits_do_not_reach_becomes_their_largest_and_nan_stays():
    pool = KvPool(size(num_gpu_blocks_override=1), CONFIG, torch.float8_e4m3fn, CPU, torch.float32)
    keys = torch.zeros(1, 2, 8)
    keys[0, 0, :3] = torch.tensor([1e9, -1e9, torch.nan])
    pool.write(0, torch.tensor([0]), keys, keys)
    first = pool.gather(0, torch.tensor([0]))[0][0, 0]
    assert first[:2].tolist() == [448.0, -448.0]
    assert first[2].isnan()


def test_a_cache_type_that_is_not_known_is_refused():
    assert kv_dtype("auto", torch.float16) == torch.float16
    with pytest.raises(StartError, match="--kv-cache-dtype 'int4' is none of auto, fp8"):
        kv_dtype("int4", torch.float16)


def test_a_pool_that_finds_no_room_for_its_values_takes_none_for_its_keys(monkeypatch):
    pool = KvPool(KvPoolSize(3, 16, 48, 3 * BLOCK), CONFIG, torch.float32, CPU)
    pool.release()
    rooms = [torch.zeros(pool._shape), None]

    def zeros(shape: object, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        room = rooms.pop(0)
        if room is None:
            raise MemoryError
        return room

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(kv_pool, "_zeros", zeros)
        pool.restore()
    assert pool.is_released
    assert (pool.keys.numel(), pool.values.numel()) == (0, 0)
    pool.restore()
    assert pool.keys.shape == pool.values.shape == pool._shape
