"""What every Group has to do, as a list of calls that each rank makes; it knows what the others give, and looks."""

from __future__ import annotations

import hashlib

import msgspec
import torch

from gpu.groups.group import Group

CPU = torch.device("cpu")
DTYPES = {
    str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64)
}


class Call(msgspec.Struct, frozen=True):
    """One call, of the same arguments on every rank."""

    kind: str
    """all_reduce, all_gather, broadcast, pass_on or pass_back (a message to the next rank, or to the one before)."""
    dtype: str = "float32"
    shape: tuple[int, ...] = (3,)
    dim: int = 0
    source: int = 0
    """Modulo the group's size."""
    seed: int = 0
    is_strided: bool = False
    """Whether what is given is no stretch of memory."""


KINDS = ("all_reduce", "all_gather", "broadcast", "pass_on", "pass_back")
SHAPES: tuple[tuple[int, ...], ...] = ((1,), (0,), (7, 13), (3, 0, 2), (2, 3, 5), (576,), (131, 577))
"""The last one is more than a piece of the shared memory's."""
EVERY_CALL = [
    Call(kind, dtype, shape, dim=number % len(shape), source=number, seed=number, is_strided=number % 3 == 0)
    for number, (kind, dtype, shape) in enumerate(
        (kind, dtype, shape) for kind in KINDS for dtype in DTYPES for shape in SHAPES
    )
]


def make_calls(group: Group, calls: list[Call], device: torch.device = CPU) -> list[str]:
    """Make them with tensors on this device, and look at what comes. Returns a digest of each that has to be the same
    on every rank."""
    return [_digest(_make(group, call, device)) for call in calls]


def given(call: Call, index: int, device: torch.device = CPU) -> torch.Tensor:
    """What the rank at this place gives."""
    generator = torch.Generator().manual_seed(call.seed * 64 + index)
    dtype = DTYPES[call.dtype]
    shape = (*call.shape[:-1], call.shape[-1] * 2) if call.is_strided else call.shape
    if dtype.is_floating_point:
        x = torch.randn(shape, generator=generator).to(dtype)
    else:
        x = torch.randint(-(2**40), 2**40, shape, generator=generator)
    x = x.to(device)
    return x[..., ::2] if call.is_strided else x


def _make(group: Group, call: Call, device: torch.device) -> torch.Tensor | None:
    parts = [given(call, index, device) for index in range(group.size)]
    mine = parts[group.index]
    match call.kind:
        case "all_reduce":
            total = group.all_reduce(mine)
            _look_at_sum(total, [given(call, index, device) for index in range(group.size)])
            return total
        case "all_gather":
            whole = group.all_gather(mine, call.dim)
            assert torch.equal(whole, torch.cat(parts, call.dim))
            return whole
        case "broadcast":
            source = call.source % group.size
            assert group.broadcast(mine, source) is mine
            assert torch.equal(mine, given(call, source, device))
            return mine
        case "pass_on" | "pass_back":
            step = 1 if call.kind == "pass_on" else -1
            to, source = (group.index + step) % group.size, (group.index - step) % group.size
            if group.size > 1:
                group.send(mine, to)
                into = torch.zeros_like(mine)
                assert group.receive(into, source) is into
                assert torch.equal(into, parts[source])
            return None
        case _:
            raise AssertionError(call.kind)


def _look_at_sum(total: torch.Tensor, parts: list[torch.Tensor]) -> None:
    assert total.shape == parts[0].shape
    assert total.dtype == parts[0].dtype
    if not total.dtype.is_floating_point:
        assert torch.equal(total, torch.stack(parts).sum(0))
        return
    exact, size = torch.stack(parts).double().sum(0), torch.stack(parts).double().abs().sum(0)
    rounding = torch.finfo(total.dtype).eps * len(parts)
    assert ((total.double() - exact).abs() <= rounding * size).all()


def _digest(result: torch.Tensor | None) -> str:
    if result is None:
        return ""
    whole = torch.empty(result.numel(), dtype=result.dtype).copy_(result.reshape(-1))  # in the host's memory
    return hashlib.sha256(whole.view(torch.uint8).numpy().tobytes()).hexdigest()[:12]
