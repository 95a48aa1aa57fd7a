"""The sampling defaults that a server applies: the checkpoint's, somebody else's, or none, and what the operator
puts in their place. Used by app/settings.py, to refuse early, and by app/service.py.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from app.checks import ranged
from app.model_card import GenerationConfig, read_generation_config
from protocol.errors import BadRequestError, CheckpointError

AUTO = "auto"
NEUTRAL = "vllm"


def generation_config(source: str, override: str | None, checkpoint: Path) -> GenerationConfig:
    """`source` is "auto" for the checkpoint's own, "vllm" for neutral ones, or a directory with another
    generation_config.json; what `override` says, as JSON, goes before it. Raises CheckpointError and BadRequestError.
    """
    return msgspec.structs.replace(_read(source, checkpoint), **read_override(override))


def read_override(text: str | None) -> dict[str, float | int | bool | None]:
    """Only the fields that are given. Raises BadRequestError naming what cannot be meant."""
    if text is None:
        return {}
    flag = "--override-generation-config"
    known = GenerationConfig.__struct_fields__
    try:
        given = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        config = msgspec.json.decode(text, type=GenerationConfig)
    except msgspec.DecodeError as error:
        raise BadRequestError(f"{flag} must be a JSON object with some of {', '.join(known)}: {error}") from error
    if unknown := sorted(given.keys() - set(known)):
        raise BadRequestError(f"{flag} has {unknown[0]!r}, which is none of {', '.join(known)}")
    _check(config, flag)
    values = msgspec.structs.asdict(config)
    return {name: values[name] for name in given}


def _read(source: str, checkpoint: Path) -> GenerationConfig:
    if source == NEUTRAL:
        return GenerationConfig()
    if source == AUTO:
        return read_generation_config(checkpoint)
    directory = Path(source)
    if not (directory / "generation_config.json").is_file():
        raise CheckpointError(
            f"--generation-config {source}: neither {AUTO} nor {NEUTRAL} nor a directory with a generation_config.json"
        )
    config = read_generation_config(directory)
    _check(config, f"--generation-config {source}")
    return config


def _check(config: GenerationConfig, where: str) -> None:
    """The same ranges as a request's own fields have."""
    try:
        ranged("temperature", config.temperature, 0.0, 2.0, 0.0)
        ranged("top_p", config.top_p, 1e-6, 1.0, 1.0)
        ranged("top_k", config.top_k, -1, None, 0)
        ranged("min_p", config.min_p, 0.0, 1.0, 0.0)
        ranged("repetition_penalty", config.repetition_penalty, 1e-6, 100.0, 1.0)
        ranged("max_new_tokens", config.max_new_tokens, 1, None, 1)
    except BadRequestError as error:
        raise BadRequestError(f"{where}: {error.message}") from error
