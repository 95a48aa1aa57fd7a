"""What a PEFT adapter says of itself: adapter_config.json, read and held to what is computed here. Imports no numpy.

Used by gpu/lora_checkpoint and gpu/fake_runner. What would change the arithmetic and is not computed is refused by
name; whom an adapter was trained for, and how, is its own business.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from protocol.errors import BadRequestError
from protocol.lora_files import CONFIG, MAX_BYTES, open_lora_file

PLAIN_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")
"""Values of init_lora_weights that leave the base weights as they are."""
NOT_COMPUTED = (
    *("use_dora", "fan_in_fan_out", "lora_bias", "modules_to_save", "layer_replication", "target_parameters"),
    *("trainable_token_indices", "alora_invocation_tokens", "use_qalora", "use_bdlora", "arrow_config"),
    *("kasa_config", "megatron_config", "velora_config", "monteclora_config"),
)
"""Keys that mean other arithmetic as soon as they have a value."""
PATTERN = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")
"""Of rank_pattern and alpha_pattern: PEFT takes regular expressions, and these are plain names."""


Number = TypeVar("Number", int, float)


class LoraConfig(msgspec.Struct, frozen=True):
    """The keys that the arithmetic depends on."""

    peft_type: str
    r: int = 8
    lora_alpha: float = 8
    use_rslora: bool = False
    bias: str = "none"
    init_lora_weights: bool | str | None = True
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None

    def rank_of(self, module: str) -> int:
        """`module` is its dotted name, as model.layers.3.self_attn.q_proj."""
        return _matching(self.rank_pattern or {}, module, self.r)

    def scaling_of(self, module: str) -> float:
        """What the product of both matrices is multiplied with."""
        rank = self.rank_of(module)
        alpha = _matching(self.alpha_pattern or {}, module, self.lora_alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


def read_lora_config(directory: Path, max_rank: int) -> LoraConfig:
    """Raises BadRequestError for a file that is missing, too large or no such config, for a rank above `max_rank`, and
    for what is not computed here."""
    with open_lora_file(directory, CONFIG) as file:
        content = file.read(MAX_BYTES[CONFIG])
    try:
        raw = msgspec.json.decode(content, type=dict[str, Any])
        config = msgspec.convert(raw, LoraConfig)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequestError(f"{CONFIG} is no config of a LoRA adapter: {error}") from error
    _check(config, raw, max_rank)
    return config


def _check(config: LoraConfig, raw: Mapping[str, Any], max_rank: int) -> None:
    if config.peft_type != "LORA":
        raise BadRequestError(f"{CONFIG}: peft_type {shortened(config.peft_type)} is not computed here, only 'LORA'")
    for key in NOT_COMPUTED:
        if raw.get(key):
            raise BadRequestError(f"{CONFIG}: {key} {shortened(raw[key])} is not computed here")
    if config.bias != "none":
        raise BadRequestError(f"{CONFIG}: bias {shortened(config.bias)} is not computed here, only 'none'")
    if config.init_lora_weights not in PLAIN_STARTS:
        raise BadRequestError(
            f"{CONFIG}: init_lora_weights {shortened(config.init_lora_weights)} changes the base weights, which is not "
            "computed here; PEFT's save_pretrained with path_initial_model_for_weight_conversion makes a plain adapter "
            "of it"
        )
    for alpha in (config.lora_alpha, *(config.alpha_pattern or {}).values()):
        if not math.isfinite(alpha):
            raise BadRequestError(f"{CONFIG}: lora_alpha {alpha} is no number")
    for key, patterns in (("rank_pattern", config.rank_pattern), ("alpha_pattern", config.alpha_pattern)):
        for pattern in patterns or {}:
            if PATTERN.fullmatch(pattern) is None:
                raise BadRequestError(f"{CONFIG}: {key} names {shortened(pattern)}, which is no plain module name")
    for rank in (config.r, *(config.rank_pattern or {}).values()):
        if not 1 <= rank <= max_rank:
            raise BadRequestError(
                f"the adapter's rank {shortened(rank)} is not within 1 and {max_rank} (--max-lora-rank)"
            )


def _matching(patterns: Mapping[str, Number], module: str, otherwise: Number) -> Number:
    """The value of the first name that is the module's, or its end."""
    for name, value in patterns.items():
        if module == name or module.endswith(f".{name}"):
            return value
    return otherwise


def shortened(value: object) -> str:
    """For a message: names, numbers and lists in these files may be as long as the files."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
