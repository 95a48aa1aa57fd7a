"""Which files of a checkpoint directory hold its weights. Imports no torch: also asked where nothing else is loaded.

Used by gpu/weights, by gpu/weights_host, which has often nothing more to do than this, and by gpu/shared_weights.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from protocol.errors import CheckpointError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
GGUF_INDEX = "gguf.json"


class _ShardIndex(msgspec.Struct):
    weight_map: dict[str, str]


class _GgufFile(msgspec.Struct):
    file: str


def weight_map(index: Path) -> dict[str, str]:
    """Tensor names and the names of their shards. Raises CheckpointError."""
    try:
        return msgspec.json.decode(index.read_bytes(), type=_ShardIndex).weight_map
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{index} is no index of shards: {error}") from error


def weight_files(checkpoint: Path) -> list[Path]:
    """In the order of `WeightSource.files`. Raises CheckpointError, OSError; looks into none of the files."""
    if (checkpoint / GGUF_INDEX).exists():
        try:
            return [Path(msgspec.json.decode((checkpoint / GGUF_INDEX).read_bytes(), type=_GgufFile).file)]
        except msgspec.DecodeError as error:
            raise CheckpointError(f"{checkpoint / GGUF_INDEX} is damaged: {error}") from error
    if (checkpoint / INDEX).exists():
        return [checkpoint / shard for shard in sorted(set(weight_map(checkpoint / INDEX).values()))]
    return [checkpoint / SINGLE]


def weights_bytes(checkpoint: Path) -> int:
    """How large they are together; what cannot be looked at counts nothing, for whoever loads it will complain."""
    try:
        return sum(file.stat().st_size for file in weight_files(checkpoint))
    except (OSError, CheckpointError):
        return 0
