"""Any other causal text model: transformers' own modelling code, with our paged attention in the place of its own.

A model is taken only if it passes a test when it is loaded: computed in chunks over the pool, beside another sequence,
it must give the logits that transformers gives with its own attention. So whatever keeps state beside keys and values,
or attends in ways of its own, is refused and not computed wrong. Made by gpu/models/transformers_checkpoint.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import torch

from gpu.batch import make_batch
from gpu.block_copies import copy_blocks
from gpu.kv_frames import KvFrames
from gpu.kv_pool import KvPool, KvPoolSize
from gpu.lora_checkpoint import AdapterWeights, LoraModule
from gpu.model import Computed
from gpu.model_shape import ModelShape
from gpu.models.transformers_attention import ATTRIBUTE, NAME, LayerAttention, PagedAttention
from protocol.errors import CheckpointError
from protocol.ids import Slot
from protocol.lora import LoraId
from protocol.step import KvCopy, Row

TEST_TOKENS = 12
TEST_BLOCK_SIZE = 4
TEST_STEPS = (((0, 0, 5),), ((0, 5, 11), (1, 0, 4)), ((0, 11, 12), (1, 4, 5)), ((1, 5, 12),))
"""The loading test's rows: of which of two equal sequences, from where, up to where."""
TOLERANCE = {torch.float32: (1.0, 1e-3), torch.bfloat16: (0.5, 0.1), torch.float16: (0.5, 0.1)}
"""Which quantile over positions of the loading test's difference, relative to the logits' spread, may be how large.
Rounding to 16 bits may send a few tokens to other experts; lost state shows at most positions."""


class TransformersModel:
    """Implements gpu.model.Model once it has a pool."""

    def __init__(self, model: Any, device: torch.device) -> None:  # noqa: ANN401 (transformers is optional)
        self.device = device
        self.lora_modules: Mapping[str, LoraModule] = {}
        self.weights_bytes = sum(parameter.nbytes for parameter in model.parameters())
        self._model = model
        self._base = model.base_model
        self._dtype: torch.dtype = model.dtype
        self.dtype = str(self._dtype).removeprefix("torch.")
        self._pool: KvPool | None = None
        self._attention = PagedAttention()
        for module in model.modules():
            module.__dict__[ATTRIBUTE] = self._attention
        output = self._probe()
        self.shape = _shape(model.config, self._attention.layers)
        self.vocab_size = self.shape.vocab_size
        self.hidden_size: int = model.config.get_text_config().hidden_size
        self._hidden = GivenHidden(type(output))
        self._head = _head_alone(model, self._hidden)
        self._test()

    def use_pool(self, pool: KvPool) -> None:
        """Compute into this pool from now on. Raises CheckpointError if its sequences may be too long for the model."""
        _check_rope(self._model, pool.size.max_model_len)
        self._pool = pool

    def add_lora(self, lora_id: LoraId, weights: AdapterWeights) -> None:
        raise AssertionError("an adapter for a model that has none")

    def remove_lora(self, lora_id: LoraId) -> None:
        raise AssertionError("an adapter for a model that has none")

    def compute(self, rows: Sequence[Row], lora_ids: Sequence[LoraId] = ()) -> Computed:
        assert not any(lora_ids), "an adapter for a model that has none"
        assert self._pool is not None, "compute after close"
        return self._compute(rows, self._pool)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The model's own head, whatever it does with hidden states."""
        self._hidden.value = hidden.unsqueeze(0)
        token_ids = torch.zeros((1, len(hidden)), dtype=torch.int64, device=self.device)
        logits = self._head(input_ids=token_ids, use_cache=False).logits[0]
        return logits.to(torch.float32, copy=True)

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """What transformers calls the last hidden state is normed already."""
        return hidden.to(torch.float32, copy=True)

    def release_kv(self) -> None:
        assert self._pool is not None, "release after close"
        self._pool.release()

    def restore_kv(self) -> None:
        assert self._pool is not None, "restore after close"
        self._pool.restore()

    @property
    def block_bytes(self) -> list[int]:
        assert self._pool is not None, "blocks after close"
        return [self._pool.block_bytes]

    @property
    def block_kind(self) -> str:
        assert self._pool is not None, "blocks after close"
        return f"transformers {version('transformers')} in {self.dtype}, {self._pool.block_kind}"

    def copy_blocks(self, saves: Sequence[KvCopy], loads: Sequence[KvCopy], frames: KvFrames) -> None:
        assert self._pool is not None, "copies after close"
        copy_blocks(self._pool, saves, loads, frames)

    def weights(self) -> Iterable[torch.Tensor]:
        return [*self._model.parameters(), *self._model.buffers()]

    def close(self) -> None:
        self._pool = None

    def _compute(self, rows: Sequence[Row], pool: KvPool) -> Computed:
        batch = make_batch(rows, self.shape.windows, pool.size.block_size, self._dtype, self.device)
        pool.clear(batch.begun_blocks)
        self._attention.begin(batch, pool)
        output = self._run(batch.token_ids, batch.positions)
        self._attention.end()
        return Computed(output.last_hidden_state[0], batch.first_token)

    def _run(self, token_ids: torch.Tensor, positions: torch.Tensor) -> Any:  # noqa: ANN401
        """[tokens] each; returns what the model without its head does."""
        return self._base(input_ids=token_ids.unsqueeze(0), position_ids=positions.unsqueeze(0), use_cache=False)

    def _probe(self) -> Any:  # noqa: ANN401
        """See how each layer attends."""
        if "position_ids" not in inspect.signature(self._base.forward).parameters:
            raise CheckpointError(f"{_name(self._model)} takes no positions, so that rows cannot be computed together")
        self._attention.begin(None, None)
        token_ids = _test_token_ids(self._model.config.get_text_config().vocab_size, self.device)
        output = self._run(token_ids, torch.arange(TEST_TOKENS, device=self.device))
        self._attention.end()
        layers = self._model.config.get_text_config().num_hidden_layers
        if len(self._attention.layers) != layers:
            raise CheckpointError(
                f"{_name(self._model)}: {len(self._attention.layers)} of {layers} layers attend through transformers' "
                "attention interface; a model is served only if all do"
            )
        return output

    def _test(self) -> None:
        """Raises CheckpointError if computing over a pool gives other logits than transformers' own attention."""
        token_ids = _test_token_ids(self.vocab_size, self.device)
        self._model.set_attn_implementation("eager")
        expected = self._model(input_ids=token_ids.unsqueeze(0), use_cache=False).logits[0].float()
        self._model.set_attn_implementation(NAME)
        num_blocks = 2 * TEST_TOKENS // TEST_BLOCK_SIZE
        size = KvPoolSize(num_blocks, TEST_BLOCK_SIZE, TEST_TOKENS, 0)
        pool = KvPool(size, self.shape, self._dtype, self.device)
        blocks = list(range(num_blocks))
        tables = blocks[: num_blocks // 2], blocks[num_blocks // 2 :]
        found = torch.zeros_like(expected).repeat(2, 1, 1)
        for step in TEST_STEPS:
            rows = [
                Row(Slot(sequence), first, token_ids[first:end].tolist(), tables[sequence], False)
                for sequence, first, end in step
            ]
            computed = self._compute(rows, pool)
            for (sequence, first, end), at in zip(step, computed.first_token, strict=True):
                found[sequence, first:end] = self.logits(computed.hidden[at : at + end - first])
        spread = (expected - expected.mean(dim=-1, keepdim=True)).norm(dim=-1)
        quantile, limit = TOLERANCE[self._dtype]
        difference = ((found - expected).norm(dim=-1) / spread).flatten().quantile(quantile).item()
        if not difference <= limit:
            raise CheckpointError(
                f"{_name(self._model)} gives other logits in chunks over the KV pool than at once (they differ by "
                f"{difference:.2%}): it keeps state beside keys and values, or its attention is not ordinary"
            )


class GivenHidden:
    """What is called instead of a model without its head, so that the head alone can be run."""

    def __init__(self, output: Callable[..., object]) -> None:
        self.value = torch.empty(0)
        self._output = output

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self._output(last_hidden_state=self.value)


def _head_alone(model: Any, given: GivenHidden) -> Any:  # noqa: ANN401
    """The same model, with the same weights, around a base that gives hidden states without computing any."""
    head, base = _shallow(model), _shallow(model.base_model)
    base.__dict__["forward"] = given
    for name, module in base.named_children():
        if module is model.get_decoder():  # some heads call this part themselves
            base._modules[name] = _shallow(module)
            base._modules[name].__dict__["forward"] = given
    head._modules[model.base_model_prefix] = base
    return head


def _shallow(module: Any) -> Any:  # noqa: ANN401
    """Another module with the same parts."""
    other = copy.copy(module)
    other.__dict__["_modules"] = dict(module._modules)
    return other


def _test_token_ids(vocab_size: int, device: torch.device) -> torch.Tensor:
    return (torch.arange(TEST_TOKENS, device=device) * 7919 + 13) % vocab_size


def _name(model: object) -> str:
    return type(model).__name__


def _shape(config: Any, layers: Sequence[LayerAttention]) -> ModelShape:  # noqa: ANN401
    text = config.get_text_config()
    limit = getattr(text, "max_position_embeddings", None)
    if not isinstance(limit, int):
        raise CheckpointError(f"{config.model_type}: max_position_embeddings is {limit!r}, not a whole number")
    if getattr(text, "sliding_window", None):
        kinds = getattr(text, "layer_types", None) or []
        for kind, layer in zip(kinds, layers, strict=False):
            if (kind == "sliding_attention") != (layer.window is not None):
                raise CheckpointError(f"{config.model_type}: a layer of type {kind} attends with window {layer.window}")
    return ModelShape(
        vocab_size=text.vocab_size,
        num_layers=len(layers),
        num_kv_heads=max(layer.kv_heads for layer in layers),
        head_dim=max(max(layer.head_dim, layer.value_dim) for layer in layers),
        max_position_embeddings=limit,
        windows=tuple(layer.window for layer in layers),
        dtype=None,
    )


def _check_rope(model: Any, max_model_len: int) -> None:  # noqa: ANN401
    """transformers changes longrope's frequencies for all sequences when one is long, which spoils cached keys."""
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        if kinds == "longrope" or (isinstance(kinds, dict) and "longrope" in kinds.values()):
            original = getattr(module.config, "original_max_position_embeddings", None)
            original = original or (module.config.rope_parameters or {}).get("original_max_position_embeddings", 0)
            if max_model_len > original:
                raise CheckpointError(
                    f"{_name(model)} has rope type longrope, and {max_model_len} tokens are above its original length: "
                    f"it is served with --max-model-len {original} and less"
                )
