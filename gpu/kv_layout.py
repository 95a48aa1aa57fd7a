"""What the bytes of an engine's KV blocks are, as its connector and others' compare it (protocol/kv.KvLayout).

Used by the runners once the model is loaded. Imports no torch.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gpu.weight_files import weight_files
from protocol.errors import CheckpointError
from protocol.kv import KV_VERSION, KvLayout
from protocol.parallel import ParallelSpec
from protocol.spec import EngineSpec, LoadFormat

END_BYTES = 2**20
"""Of a file's beginning and of its end, that tell it from others: to read all would take as long as to load it."""
STRIDE_BYTES, SAMPLE_BYTES = 2**20, 2**10
"""Between them, every so often so much: an adapter that was merged into some of the matrices changes neither end."""

logger = logging.getLogger("trillm.load")


class WeightFile(msgspec.Struct, frozen=True, array_like=True):
    """The same on every host, wherever the file lies and whenever it came there."""

    name: str
    size: int
    samples: bytes
    """SHA-256 of its first and its last END_BYTES, and of samples between."""

    @classmethod
    def of(cls, path: Path) -> WeightFile:
        """Raises OSError."""
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            digest = hashlib.sha256()
            for start in (0, max(0, size - END_BYTES)):
                file.seek(start)
                digest.update(file.read(END_BYTES))
            for start in range(END_BYTES, size - END_BYTES, STRIDE_BYTES):
                digest.update(os.pread(file.fileno(), SAMPLE_BYTES, start))
        return cls(path.name, size, digest.digest())


class Meaning(msgspec.Struct, frozen=True, array_like=True):
    """All that makes a block's bytes what they are. No adapters: they are in the blocks' hashes."""

    version: int
    config: bytes
    """SHA-256 of config.json."""
    weights: list[WeightFile]
    kind: str
    """gpu.model.Model.block_kind."""
    quantization: str | None
    block_size: int
    parallel: ParallelSpec
    piece_bytes: list[int]


def kv_layout(spec: EngineSpec, kind: str, piece_bytes: Sequence[int]) -> KvLayout | None:
    """Of the model that `spec` names and that was loaded; `kind` and `piece_bytes` are as gpu.model.Model has them.
    None, with a line in the log, if its files cannot be read any more."""
    checkpoint = Path(spec.checkpoint)
    try:
        files = [] if spec.load_format is LoadFormat.DUMMY else weight_files(checkpoint)
        meaning = Meaning(
            KV_VERSION,
            hashlib.sha256((checkpoint / "config.json").read_bytes()).digest(),
            [WeightFile.of(file) for file in files],
            kind,
            spec.quantization,
            spec.block_size,
            spec.parallel,
            list(piece_bytes),
        )
    except (OSError, CheckpointError) as error:
        logger.warning("KV blocks stay in this engine, since its checkpoint cannot be told from others: %s", error)
        return None
    return KvLayout(hashlib.sha256(msgspec.msgpack.encode(meaning)).digest(), spec.block_size, list(piece_bytes))
