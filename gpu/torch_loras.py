"""Adapters of the decoder in torch's operators, in its data type and on its device. Used by gpu/torch_model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from gpu.config import ModelConfig
from gpu.layers.linear import Linear
from gpu.layers.lora import AdaptedStep, LoraLinear, LoraProduct
from gpu.layers.mlp import GatedMLP
from gpu.layers.parallel import RowParallelLinear
from gpu.lora_checkpoint import AdapterWeights, LinearName, LoraModule
from gpu.lora_modules import lora_modules
from gpu.models.decoder import Decoder
from gpu.models.decoder_layer import DecoderLayer
from gpu.models.decoder_loader import reorder_heads
from gpu.shard import Shard
from gpu.span import Span
from gpu.staging import Staging
from protocol.lora import NO_LORA, LoraId
from protocol.step import Row


class TorchLoras:
    """Changes the linears of a decoder on being made."""

    def __init__(self, decoder: Decoder, config: ModelConfig, shard: Shard | None = None) -> None:
        """`shard` says which part of the model the decoder is, if it is not all of it; an adapter's factors are cut as
        the linears are."""
        self._config = config
        self._shard = shard or Shard(config)
        self._modules = lora_modules(config)
        self._dtype, self._device = decoder.embedding.dtype, decoder.embedding.device
        self._step = AdaptedStep()
        self._staging = Staging(self._device)
        self._known: set[LoraId] = set()
        self._linears = [_surround(layer, self._step) for layer in decoder.layers]

    def add(self, lora_id: LoraId, weights: AdapterWeights) -> None:
        self._known.add(lora_id)
        for name, low_rank in weights.modules.items():
            module = self._modules[name]
            if module.layer not in self._shard.layers:
                continue
            linear = self._linears[module.layer - self._shard.layers.start][module.linear]
            a, b = torch.tensor(low_rank.a), torch.tensor(low_rank.b)
            self._reorder(module, b)
            first_row, a, b = self._cut(module, a, b)
            product = LoraProduct(
                first_row,
                len(b),
                linear.make(a.to(self._device, self._dtype)),
                linear.make(b.to(self._device, self._dtype)),
            )
            linear.products.setdefault(lora_id, []).append(product)

    def remove(self, lora_id: LoraId) -> None:
        """Also what was added in part."""
        self._known.discard(lora_id)
        for layer in self._linears:
            for linear in layer.values():
                linear.products.pop(lora_id, None)

    @contextmanager
    def on(self, rows: Sequence[Row], first_token: Sequence[int], lora_ids: Sequence[LoraId]) -> Iterator[None]:
        """Within it the linears compute a step of these rows, whose tokens begin there."""
        tokens: dict[LoraId, list[int]] = {}
        for row, first, lora_id in zip(rows, first_token, lora_ids, strict=True):
            if lora_id != NO_LORA:
                assert lora_id in self._known, f"slot {row.slot} has adapter {lora_id}, which is not there"
                tokens.setdefault(lora_id, []).extend(range(first, first + len(row.token_ids)))
        places, _ = self._staging.place(list(tokens.values()), [])
        self._step.tokens_of = dict(zip(tokens, places, strict=True))
        try:
            yield
        finally:
            self._step.tokens_of = {}

    def _cut(self, module: LoraModule, a: torch.Tensor, b: torch.Tensor) -> tuple[int, torch.Tensor, torch.Tensor]:
        """From which of the linear's rows on, and this rank's part of the factors. Where the linear has some of the
        columns, what it gives is added up over the ranks, and the adapter's part with it."""
        shard = self._shard
        match module.linear:
            case LinearName.OUTPUT:
                return 0, a[:, shard.queries.slice], b
            case LinearName.DOWN:
                return 0, a[:, shard.inner(self._config.intermediate_size).slice], b
            case LinearName.QKV:
                spans: Sequence[Span] = shard.projections
            case LinearName.GATE_UP:
                inner = shard.inner(self._config.intermediate_size)
                spans = (inner, inner)
        before, first_row, pieces = 0, 0, []
        for rows in spans:
            start = before - module.first_row
            if 0 <= start < module.rows:  # a module has some of them, each whole
                pieces.append(b[start : start + rows.whole][rows.slice])
            elif start < 0:
                first_row += rows.count
            before += rows.whole
        return first_row, a, torch.cat(pieces)

    def _reorder(self, module: LoraModule, b: torch.Tensor) -> None:
        """Rows of queries and keys come in the order in which the decoder has put those of the weight."""
        config = self._config
        order = config.rope_of(module.layer).head_order(config.head_dim)
        rotated = (config.num_heads + config.num_kv_heads) * config.head_dim
        if module.linear is LinearName.QKV and order is not None and module.first_row < rotated:
            reorder_heads(order, min(module.rows, rotated - module.first_row), b)


def _surround(layer: DecoderLayer, step: AdaptedStep) -> dict[LinearName, LoraLinear]:
    """Those of experts stay as they are."""
    attention, mlp = layer.attention, layer.mlp
    attention.qkv = qkv = LoraLinear(attention.qkv, step)
    attention.output, output = _surround_output(attention.output, step)
    linears = {LinearName.QKV: qkv, LinearName.OUTPUT: output}
    if isinstance(mlp, GatedMLP):
        mlp.gate_up = gate_up = LoraLinear(mlp.gate_up, step)
        mlp.down, down = _surround_output(mlp.down, step)
        linears |= {LinearName.GATE_UP: gate_up, LinearName.DOWN: down}
    return linears


def _surround_output(linear: Linear, step: AdaptedStep) -> tuple[Linear, LoraLinear]:
    """What takes the linear's place, and what adapters are added to: what ranks share, before it is added up."""
    if not isinstance(linear, RowParallelLinear):
        surrounded = LoraLinear(linear, step)
        return surrounded, surrounded
    surrounded = LoraLinear(linear.linear, step)
    return RowParallelLinear(surrounded, linear.bias, linear.group), surrounded
