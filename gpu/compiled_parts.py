"""What a layer computes between linears and attention, compiled: each norm, gate and rotation as one kernel.

In torch's own operators a gate is two passes over memory and a rotation four. Tried when the model is loaded, on steps
of the model itself, since whether a compiler is there and right is a matter of card, torch build and what is installed.
Used by gpu/cuda_model. Never run on a GPU so far; inductor's code for CPUs passed the trial, in float32 and bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from gpu.attention_backend import GatherBackend
from gpu.config import ModelConfig
from gpu.kv_pool import KvPool, KvPoolSize
from gpu.layers.attention import Attention
from gpu.layers.mlp import GatedMLP, gated
from gpu.layers.norm import Norm, RMSNorm, WholeNorm, WideRMSNorm, rms_norm, wide_rms_norm
from gpu.layers.rope import rotate
from gpu.models.decoder import Decoder
from protocol.ids import Slot
from protocol.step import Row

Compiler = str | Callable[..., Any]
"""What torch.compile calls a backend."""
INDUCTOR = "inductor"
STEPS = (((0, 0, 9),), ((0, 9, 1),), ((0, 10, 1), (1, 0, 4)), ((0, 11, 1), (1, 4, 1)))
"""The trial's rows: whose, from where on, how many tokens. One token is a shape of its own to the compiler."""
TRIED_LENGTH = 12
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.02}
"""Of the norm of the hidden states, after all layers."""

Part = RMSNorm | WideRMSNorm | GatedMLP | Attention


def use_plain_parts(decoder: Decoder) -> None:
    """Torch's own operators everywhere."""
    _put_in(decoder, lambda function: function)


def compile_parts(decoder: Decoder, config: ModelConfig, block_size: int, compiler: Compiler) -> str | None:
    """Compile, and hold it to the same steps without: None if they agree, else the reason, and all is as it was."""
    use_plain_parts(decoder)
    expected = tried(decoder, config, block_size)
    compiled: dict[Callable[..., torch.Tensor], Callable[..., torch.Tensor]] = {}

    def compile_once(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        if function not in compiled:
            compiled[function] = torch.compile(function, fullgraph=True, dynamic=True, backend=compiler)
        return compiled[function]

    _put_in(decoder, compile_once)
    try:
        found = tried(decoder, config, block_size)
    except (RuntimeError, ImportError, OSError, ValueError, TypeError) as error:  # what compilers say when they fail
        reason: str | None = " ".join(str(error).split("\n")[:2])  # who failed, and why
    else:
        difference = ((found - expected).norm() / expected.norm()).item()
        limit = TOLERANCE[decoder.embedding.dtype]
        reason = None if difference <= limit else f"compiled, the model differs from itself by {difference:.3g}"
    if reason is not None:
        use_plain_parts(decoder)
    return reason


def _put_in(decoder: Decoder, change: Callable[[Callable[..., torch.Tensor]], Callable[..., torch.Tensor]]) -> None:
    for part in _parts(decoder):
        match part:
            case RMSNorm():
                part.compute = change(rms_norm)
            case WideRMSNorm():
                part.compute = change(wide_rms_norm)
            case GatedMLP():
                part.compute = change(gated)
            case Attention():
                part.rotate = change(rotate)


def _parts(decoder: Decoder) -> Iterator[Part]:
    """Without those of experts, which see other numbers of tokens each time."""
    norms: list[Norm] = [decoder.norm]
    for layer in decoder.layers:
        norms += [layer.attention_norm, layer.after_attention, layer.mlp_norm, layer.after_mlp]
        norms += layer.attention.qk_norm or ()
        yield layer.attention
        if isinstance(layer.mlp, GatedMLP):
            yield layer.mlp
    for norm in norms:
        inner = norm.norm if isinstance(norm, WholeNorm) else norm
        if isinstance(inner, RMSNorm | WideRMSNorm):
            yield inner


def tried(decoder: Decoder, config: ModelConfig, block_size: int) -> torch.Tensor:
    """The trial's steps by torch's own attention: hidden states and norms of them, [all tokens, 2 * hidden] float32."""
    dtype, device = decoder.embedding.dtype, decoder.embedding.device
    blocks = -(-TRIED_LENGTH // block_size)
    pool = KvPool(KvPoolSize(2 * blocks, block_size, TRIED_LENGTH, 0), config, dtype, device)
    backend = GatherBackend(config.windows, block_size, dtype, device)
    states = []
    for step in STEPS:
        rows = [
            Row(
                Slot(slot),
                start,
                [(7919 * p + slot) % config.vocab_size for p in range(start, start + count)],
                list(range(slot * blocks, (slot + 1) * blocks)),
                False,
            )
            for slot, start, count in step
        ]
        hidden = decoder.hidden_states(backend.batch(rows), pool)
        states.append(torch.cat([hidden, decoder.norm(hidden)], dim=1).float())
    return torch.cat(states)
