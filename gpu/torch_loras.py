"""Adapters of the decoder in torch's operators, in its data type and on its device. Used by gpu/torch_model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from gpu.config import ModelConfig
from gpu.layers.lora import AdaptedStep, LoraLinear, LoraProduct
from gpu.layers.mlp import GatedMLP
from gpu.lora_checkpoint import AdapterWeights, LinearName, LoraModule
from gpu.lora_modules import lora_modules
from gpu.models.decoder import Decoder
from gpu.models.decoder_layer import DecoderLayer
from gpu.models.decoder_loader import reorder_heads
from gpu.staging import Staging
from protocol.lora import NO_LORA, LoraId
from protocol.step import Row


class TorchLoras:
    """Changes the linears of a decoder on being made."""

    def __init__(self, decoder: Decoder, config: ModelConfig) -> None:
        self._config = config
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
            linear = self._linears[module.layer][module.linear]
            a, b = torch.tensor(low_rank.a), torch.tensor(low_rank.b)
            self._reorder(module, b)
            product = LoraProduct(
                module.first_row,
                module.rows,
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
    attention.output = output = LoraLinear(attention.output, step)
    linears = {LinearName.QKV: qkv, LinearName.OUTPUT: output}
    if isinstance(mlp, GatedMLP):
        mlp.gate_up = gate_up = LoraLinear(mlp.gate_up, step)
        mlp.down = down = LoraLinear(mlp.down, step)
        linears |= {LinearName.GATE_UP: gate_up, LinearName.DOWN: down}
    return linears
