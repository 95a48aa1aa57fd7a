"""Whether a model can lie over ranks as an operator asks, by config.json: known before any process is started.

The engine looks again (gpu/shard), with all that it knows of the model. Used by app/launch and app/hypercorn_command.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from protocol.errors import CheckpointError, StartError
from protocol.parallel import ParallelSpec, why_not

EXPERTS = ("num_experts", "num_local_experts")


def check_sizes(directory: Path, parallel: ParallelSpec) -> None:
    """Raises StartError naming the flag and the sizes that would do; CheckpointError if config.json cannot be read.
    What that does not say is left to the engine."""
    if parallel == ParallelSpec():
        return
    try:
        whole = msgspec.json.decode((directory / "config.json").read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointError(f"{directory / 'config.json'}: cannot be read: {error}") from error
    text = whole.get("text_config")
    config = whole | (text if isinstance(text, dict) else {})
    heads, layers = _size(config, "num_attention_heads"), _size(config, "num_hidden_layers")
    kv_heads = _size(config, "num_key_value_heads") or heads
    experts = next((size for key in EXPERTS if (size := _size(config, key)) is not None), 0)
    if heads is None or kv_heads is None or layers is None:
        return
    reason = why_not(parallel, heads, kv_heads, layers, experts)
    if reason is not None:
        raise StartError(reason)


def _size(config: dict[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
