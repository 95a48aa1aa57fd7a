"""One layer of the decoder. Made by gpu/models/decoder_loader, run by gpu/models/decoder."""

from __future__ import annotations

import attrs

from gpu.layers.attention import Attention
from gpu.layers.experts import Experts, SharedExpert
from gpu.layers.linear import Linear
from gpu.layers.mlp import GatedMLP
from gpu.layers.norm import Norm
from gpu.layers.parallel import RowParallelLinear
from gpu.layers.rope import RotaryEmbedding
from gpu.linear_change import LinearChange


@attrs.frozen(eq=False)
class DecoderLayer:
    """Attention and feed-forward, each between norms (some of which are none) and added to the residual stream."""

    attention_norm: Norm
    attention: Attention
    after_attention: Norm
    mlp_norm: Norm
    mlp: GatedMLP | Experts
    after_mlp: Norm
    window: int | None
    rotary: RotaryEmbedding


def change_linears(layer: DecoderLayer, change: LinearChange | None) -> DecoderLayer:
    """The layer with what `change` makes of its linears."""
    if change is None:
        return layer
    layer.attention.qkv, layer.attention.output = change(layer.attention.qkv), _changed(layer.attention.output, change)
    mlps = [layer.mlp] if isinstance(layer.mlp, GatedMLP) else layer.mlp.experts
    if isinstance(layer.mlp, Experts):
        layer.mlp.router = change(layer.mlp.router)
        if layer.mlp.shared is not None:
            mlps = [*mlps, layer.mlp.shared.mlp]
            layer.mlp.shared = SharedExpert(layer.mlp.shared.mlp, change(layer.mlp.shared.gate))
    for mlp in mlps:
        mlp.gate_up, mlp.down = change(mlp.gate_up), _changed(mlp.down, change)
    return layer


def _changed(linear: Linear, change: LinearChange) -> Linear:
    """What ranks share is changed where it multiplies."""
    if isinstance(linear, RowParallelLinear):
        return RowParallelLinear(change(linear.linear), linear.bias, linear.group)
    return change(linear)
