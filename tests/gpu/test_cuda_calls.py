"""The calls that only a GPU computes, with torch's own functions and tensors that have shapes but no data.

So what is checked is what torch checks before it computes: names, types, and (of scaled products) layouts.
"""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.varlen import varlen_attn

from gpu.kv_pool import KvPool, KvPoolSize
from gpu.layers.fp8 import Fp8Linear
from gpu.model_shape import ModelShape
from gpu.varlen_attention import KvAccess, VarlenPlan, VarlenRows

CPU, CUDA = torch.device("cpu"), torch.device("cuda")  # torch without CUDA slices no tensor of the latter
SHAPE = ModelShape(
    vocab_size=1,
    num_layers=1,
    num_kv_heads=8,
    head_dim=128,
    max_position_embeddings=1,
    windows=(None,),
    dtype=None,
)


@pytest.mark.parametrize("access", KvAccess)
@pytest.mark.parametrize(("window", "splits"), [(None, None), (7, 1)])
def test_torch_takes_our_call_of_varlen_attention(access, window, splits):
    with FakeTensorMode(), torch.no_grad():
        pool = KvPool(KvPoolSize(10, 16, 64, 0), SHAPE, torch.bfloat16, CPU)
        paged = access is KvAccess.PAGED

        def ints(*sizes: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(sizes, dtype=dtype, device=CPU)

        blocks = ints(2, 4) if paged else ints(5, dtype=torch.int64)
        rows = VarlenRows(ints(3), ints(2), 3, 64, blocks, None if paged else ints(3))
        plan = VarlenPlan(ints(4, dtype=torch.int64), rows, window, varlen_attn, splits)
        queries = torch.empty(4, 40, 128, dtype=torch.bfloat16, device=CPU)[:, :32]
        out = plan.attend(queries, 0, pool, 0.1, None)
    assert (out.shape, out.dtype, out.device.type) == ((4, 32 * 128), torch.bfloat16, "cpu")


@pytest.mark.parametrize("rows", [1, 5, 300])
def test_torch_takes_our_call_of_scaled_products(rows):
    with FakeTensorMode(), torch.no_grad():
        weight = torch.empty(96, 64, dtype=torch.bfloat16, device=CUDA)
        linear = Fp8Linear(weight, torch.empty(96, dtype=torch.bfloat16, device=CUDA))
        out = linear(torch.empty(rows, 64, dtype=torch.bfloat16, device=CUDA))
        assert (out.shape, out.dtype, out.device.type) == ((rows, 96), torch.bfloat16, "cuda")
        linear.scales = linear.scales.t()
        with pytest.raises(RuntimeError, match="scal"):  # that something is checked at all
            linear(torch.empty(rows, 64, dtype=torch.bfloat16, device=CUDA))
