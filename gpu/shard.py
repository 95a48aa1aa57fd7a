"""Which part of a model one rank holds: its layers, and of each layer heads, inner rows, vocabulary and experts.

Used by gpu/models (what to read and compute), gpu/load_model (how large the KV pool is) and gpu/torch_loras.
"""

from __future__ import annotations

import attrs

from gpu.config import ModelConfig
from gpu.groups.groups import Groups
from gpu.span import Span
from protocol.errors import StartError
from protocol.parallel import ParallelSpec, why_not


@attrs.frozen
class Shard:
    """Of one rank. By default there is no other, and it holds everything."""

    config: ModelConfig
    """Of the whole model."""
    tensor_index: int = 0
    tensor: int = 1
    """Ranks that share each layer."""
    stage: int = 0
    stages: int = 1
    experts_apart: bool = False
    """Whether experts are spread over those ranks whole."""

    @classmethod
    def of(cls, config: ModelConfig, groups: Groups) -> Shard:
        """Raises StartError where the model cannot be cut so."""
        check_parallel(config, groups.parallel)
        return cls(
            config,
            groups.tensor.index,
            groups.tensor.size,
            groups.pipeline.index,
            groups.pipeline.size,
            groups.parallel.experts,
        )

    @property
    def has_ends(self) -> bool:
        """Whether embedding, final norm and head are here."""
        return self.stage == 0

    @property
    def layers(self) -> range:
        """The first stage, which has the ends too, gets no more layers than the others."""
        return Span.share_of(self.config.num_layers, self.stage, self.stages).places

    @property
    def heads(self) -> Span:
        return Span.share_of(self.config.num_heads, self.tensor_index, self.tensor)

    @property
    def kv_heads(self) -> Span:
        """Those that `heads` look at: where there are fewer than ranks, several ranks hold the same one."""
        count = self.config.num_kv_heads
        if self.tensor <= count:
            return Span.share_of(count, self.tensor_index, self.tensor)
        return Span(self.tensor_index * count // self.tensor, 1, count)

    @property
    def queries(self) -> Span:
        """Rows."""
        return self.heads.times(self.config.head_dim)

    @property
    def keys(self) -> Span:
        """Rows, and values' too."""
        return self.kv_heads.times(self.config.head_dim)

    @property
    def projections(self) -> tuple[Span, Span, Span]:
        """Rows of queries, keys and values."""
        return self.queries, self.keys, self.keys

    def inner(self, size: int) -> Span:
        """Of a feed-forward block's inner layer. Shares need not be equal: they only meet in a sum."""
        return Span.share_of(size, self.tensor_index, self.tensor)

    @property
    def vocabulary_rows(self) -> int:
        """What each rank's logits are filled up to."""
        return -(-self.config.vocab_size // self.tensor)

    @property
    def vocabulary(self) -> Span:
        """Rows of embedding and head; the last rank's are what is left."""
        size, rows = self.config.vocab_size, self.vocabulary_rows
        start = min(size, self.tensor_index * rows)
        return Span(start, min(rows, size - start), size)

    @property
    def experts(self) -> Span:
        """Those that are computed here, in whole or in part."""
        assert self.config.experts is not None, "a model without experts"
        count = self.config.experts.count
        return Span.share_of(count, self.tensor_index, self.tensor) if self.experts_apart else Span.all_of(count)

    def expert_inner(self, size: int) -> Span:
        return Span.all_of(size) if self.experts_apart else self.inner(size)

    @property
    def held(self) -> ModelConfig:
        """The model as this rank's KV pool and attention see it: with the heads and layers that are here."""
        if self.tensor == self.stages == 1:
            return self.config
        return attrs.evolve(
            self.config,
            num_layers=len(self.layers),
            num_heads=self.heads.count,
            num_kv_heads=self.kv_heads.count,
            windows=self.config.windows[self.layers.start : self.layers.stop],
        )


def check_parallel(config: ModelConfig, parallel: ParallelSpec) -> None:
    """Raises StartError, naming what would do, where the model cannot be cut so."""
    experts = 0 if config.experts is None else config.experts.count
    reason = why_not(parallel, config.num_heads, config.num_kv_heads, config.num_layers, experts)
    if reason is not None:
        raise StartError(reason)
    sizes = [config.intermediate_size]
    if config.experts is not None:
        sizes += [config.experts.size, config.experts.shared_size or config.experts.size]
    if min(sizes) < parallel.tensor:
        raise StartError(
            f"--tensor-parallel-size {parallel.tensor} is above the {min(sizes)} inner rows of a feed-forward block"
        )
