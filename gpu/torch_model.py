"""The model in torch's own operators: on a GPU, in a data type that was asked for, or where there are no kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from gpu.attention_backend import AttentionBackend, GatherBackend
from gpu.batch import StepBatch
from gpu.block_copies import copy_blocks
from gpu.config import ModelConfig
from gpu.graphs import DecodeGraphs
from gpu.kv_frames import KvFrames
from gpu.kv_pool import KvPool
from gpu.last_tokens import LastTokens
from gpu.lora_checkpoint import AdapterWeights, LoraModule
from gpu.lora_modules import lora_modules
from gpu.model import Computed
from gpu.models.decoder import Decoder
from gpu.moved_weights import tensors_in
from gpu.torch_loras import TorchLoras
from protocol.lora import LoraId
from protocol.step import KvCopy, Row


class TorchModel:
    """Implements gpu.model.Model."""

    def __init__(
        self,
        decoder: Decoder,
        config: ModelConfig,
        pool: KvPool,
        weights_bytes: int,
        backend: AttentionBackend | None = None,
        graphs: DecodeGraphs | None = None,
        last_tokens: LastTokens | None = None,
        loras: TorchLoras | None = None,
    ) -> None:
        """Without a backend attention is the reference; without graphs every step is launched operator by operator;
        without `last_tokens`, which the graphs know too, the host has to tell all tokens; without `loras`, which the
        decoder's linears know too, there are no adapters.

        `config` is the whole model's; decoder and pool may be one rank's part, all of whose tensor group then make the
        same calls."""
        self.decoder = decoder
        self.pool: KvPool | None = pool
        self.dtype = str(decoder.embedding.dtype).removeprefix("torch.")
        self.device = decoder.embedding.device
        self.vocab_size = config.vocab_size
        self.hidden_size = config.hidden_size
        self.weights_bytes = weights_bytes
        self._backend = backend or GatherBackend(
            config.windows, pool.size.block_size, decoder.embedding.dtype, self.device
        )
        self._graphs = graphs
        self.last_tokens = last_tokens
        self._loras = loras
        self.lora_modules: Mapping[str, LoraModule] = lora_modules(config)
        self._rotation = config.rope.length_kind
        self._is_stage = len(decoder.layers) < config.num_layers

    def is_recorded(self, rows: Sequence[Row]) -> bool:
        """Whether this step runs as a graph."""
        return self._graphs is not None and self._graphs.holds(rows)

    def compute(self, rows: Sequence[Row], lora_ids: Sequence[LoraId] = ()) -> Computed:
        """A step with an adapter is not run as a graph: those were recorded without."""
        assert not self._is_stage, "a stage computes with what the one before it gives"
        is_adapted = any(lora_ids)
        if self._graphs is not None and not is_adapted and (computed := self._graphs.compute(rows)) is not None:
            return computed
        return self.run_stage(rows, lora_ids)

    def run_stage(
        self, rows: Sequence[Row], lora_ids: Sequence[LoraId] = (), given: torch.Tensor | None = None
    ) -> Computed:
        """What the layers that are here make of what the stage before gave for these rows, [tokens, hidden]; the first
        stage is given nothing. What comes out is `hidden_states` of all layers after the last stage only."""
        assert self.pool is not None, "compute after close"
        batch = self._backend.batch(rows)
        if self.last_tokens is not None:
            batch = self.last_tokens.resolved(batch)
        if not any(lora_ids):
            return Computed(self._run(batch, given), batch.first_token)
        assert self._loras is not None, "an adapter for a model that has none"
        with self._loras.on(rows, batch.first_token, lora_ids):
            return Computed(self._run(batch, given), batch.first_token)

    def _run(self, batch: StepBatch, given: torch.Tensor | None) -> torch.Tensor:
        assert self.pool is not None, "compute after close"
        return self.decoder.run_layers(batch, self.decoder.embed(batch) if given is None else given, self.pool)

    def add_lora(self, lora_id: LoraId, weights: AdapterWeights) -> None:
        assert self._loras is not None, "an adapter for a model that has none"
        self._loras.add(lora_id, weights)

    def remove_lora(self, lora_id: LoraId) -> None:
        assert self._loras is not None, "an adapter for a model that has none"
        self._loras.remove(lora_id)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.decoder.logits(hidden)

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.decoder.norm(hidden).to(torch.float32, copy=True)

    def release_kv(self) -> None:
        assert self.pool is not None, "release after close"
        self.pool.release()
        if self._graphs is not None:
            self._graphs.forget()

    def restore_kv(self) -> None:
        assert self.pool is not None, "restore after close"
        self.pool.restore()

    @property
    def block_bytes(self) -> list[int]:
        assert self.pool is not None, "blocks after close"
        return [self.pool.block_bytes]

    @property
    def block_kind(self) -> str:
        assert self.pool is not None, "blocks after close"
        return f"torch in {self.dtype}, {self._rotation}, {self.pool.block_kind}"

    def copy_blocks(self, saves: Sequence[KvCopy], loads: Sequence[KvCopy], frames: KvFrames) -> None:
        assert self.pool is not None, "copies after close"
        copy_blocks(self.pool, saves, loads, frames)

    def weights(self) -> Iterable[torch.Tensor]:
        return tensors_in(self.decoder)

    def close(self) -> None:
        self.pool = None
        self._graphs = None
