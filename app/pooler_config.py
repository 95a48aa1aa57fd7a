"""--pooler-config: vLLM's JSON, in the place of what the checkpoint says of its embeddings. Read by app/settings.py, to
refuse early, and by app/service.py."""

from __future__ import annotations

from pathlib import Path

import msgspec

from app.checkpoints.pooler import Pooler, read_pooler
from protocol.errors import BadRequestError
from protocol.pooling import Pooling


class PoolerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As vLLM names it. What is not given is as the checkpoint says."""

    pooling_type: Pooling | None = None
    normalize: bool | None = None


def read_pooler_config(text: str | None) -> PoolerConfig:
    """Raises BadRequestError for what is not JSON or not known."""
    if text is None:
        return PoolerConfig()
    try:
        return msgspec.json.decode(text, type=PoolerConfig)
    except msgspec.DecodeError as error:
        kinds = ", ".join(Pooling)
        raise BadRequestError(
            f"--pooler-config must be a JSON object with pooling_type (one of {kinds}) and normalize: {error}"
        ) from error


def pooler(text: str | None, checkpoint: Path) -> Pooler:
    """Raises BadRequestError, and CheckpointError for files that cannot be read."""
    config = read_pooler_config(text)
    own = read_pooler(checkpoint)
    normalize = own.normalize if config.normalize is None else config.normalize
    if config.pooling_type is None:
        return Pooler(own.pooling, normalize, own.refusal)
    return Pooler(config.pooling_type, normalize)
