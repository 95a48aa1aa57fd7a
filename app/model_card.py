"""What is said about the served model: its names, and what its checkpoint recommends for sampling.

Made once at start from the checkpoint directory; read by the routes.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from attrs import field, frozen

from app.adapters import Adapters
from protocol.errors import CheckpointError, NotFoundError
from protocol.lora import LoraRequest


class GenerationConfig(msgspec.Struct, frozen=True):
    """The part of a checkpoint's generation_config.json that trillm uses. What is absent stays neutral."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    do_sample: bool | None = None
    max_new_tokens: int | None = None
    """Most tokens of any answer."""


@frozen
class ModelCard:
    """The names that a request may use, the first of which is told in answers, and the sampling defaults."""

    served_names: tuple[str, ...]
    created: int
    """Unix time in seconds."""
    eos_token_ids: tuple[int, ...] = ()
    generation_config: GenerationConfig = field(factory=GenerationConfig)
    adapters: Adapters = field(factory=Adapters)
    """Models too, for those who ask for one. They come and go while we serve."""
    checkpoint_name: str | None = None
    """What the model itself is called, however it is served; None: by the first served name."""

    @property
    def root(self) -> str:
        """What /v1/models calls the model's root."""
        return self.checkpoint_name or self.served_names[0]

    def name(self, asked: str | None) -> str:
        """The served name to tell for the name that was asked for; without one, the first. NotFoundError if unknown."""
        self.lora(asked)
        return asked or self.served_names[0]

    def lora(self, asked: str | None) -> LoraRequest | None:
        """The adapter to compute with for the name that was asked for; None: the model alone. NotFoundError if
        unknown."""
        if not asked or asked in self.served_names:
            return None
        if (adapter := self.adapters.find(asked)) is not None:
            return adapter.lora
        names = [*self.served_names, *(adapter.name for adapter in self.adapters)]
        raise NotFoundError(
            f"The model `{asked[:200]}` does not exist here; served: {', '.join(names)}",
            param="model",
            code="model_not_found",
        )


def read_generation_config(checkpoint: Path) -> GenerationConfig:
    """generation_config.json of a checkpoint directory, neutral if it has none. Raises CheckpointError."""
    path = checkpoint / "generation_config.json"
    if not path.exists():
        return GenerationConfig()
    try:
        return msgspec.json.decode(path.read_bytes(), type=GenerationConfig)
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{path}: {error}") from error
