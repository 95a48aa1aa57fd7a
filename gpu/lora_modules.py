"""The projections of a decoder that adapters may add to, by name, and in which of its linears each of them lies.

Used by gpu/torch_model and gpu/native_model. PEFT's names are those of the checkpoint, also where the weights come from
a GGUF file: its rows have been put back into the checkpoint's order by then (gpu/gguf_weights).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu.config import ModelConfig
from gpu.lora_checkpoint import LinearName, LoraModule


def lora_modules(config: ModelConfig) -> dict[str, LoraModule]:
    """All but those of experts. Embedding and head are none."""
    modules: dict[str, LoraModule] = {}
    for layer in range(config.num_layers):
        for linear in LinearName:
            modules |= dict(_projections(config, layer, linear))
    return modules


def _projections(config: ModelConfig, layer: int, linear: LinearName) -> Iterator[tuple[str, LoraModule]]:
    names, sizes, columns = _shape(config, linear)
    if linear.is_mlp and config.experts is not None and layer in config.experts.layers:
        return
    if len(names) == 1:
        sizes = (sum(sizes),)
    block = "mlp" if linear.is_mlp else "self_attn"
    first_row = 0
    for name, rows in zip(names, sizes, strict=True):
        yield f"model.layers.{layer}.{block}.{name}", LoraModule(layer, linear, first_row, rows, columns)
        first_row += rows


def _shape(config: ModelConfig, linear: LinearName) -> tuple[Sequence[str], Sequence[int], int]:
    """Names of the projections, the rows of each, and their columns."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    match linear:
        case LinearName.QKV:
            return config.qkv, (queries, keys, keys), config.hidden_size
        case LinearName.OUTPUT:
            return ("o_proj",), (config.hidden_size,), queries
        case LinearName.GATE_UP:
            return config.gate_up, (config.intermediate_size, config.intermediate_size), config.hidden_size
        case LinearName.DOWN:
            return ("down_proj",), (config.hidden_size,), config.intermediate_size
