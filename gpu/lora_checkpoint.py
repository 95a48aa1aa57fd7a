"""A PEFT LoRA adapter from its directory: adapter_config.json and adapter_model.safetensors, held to the served model.

Used by the runners' `read_adapter`, in a thread of its own while steps run. Whatever does not fit, or would be computed
otherwise than PEFT does, is a BadRequestError that names it.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from gpu.lora_config import LoraConfig, read_lora_config, shortened
from gpu.lora_file import LoraFile
from protocol.errors import BadRequestError
from protocol.lora_files import WEIGHTS

if TYPE_CHECKING:
    import numpy as np

FACTOR = re.compile(r"base_model\.model\.(?:model\.)?(.+)\.lora_([AB])\.weight")
"""PEFT's name of a tensor; adapters of a model without a head have one "model." less."""


class LinearName(enum.Enum):
    """A linear of a layer, which may be several projections of the same input."""

    QKV = enum.auto()
    OUTPUT = enum.auto()
    GATE_UP = enum.auto()
    DOWN = enum.auto()

    @property
    def is_mlp(self) -> bool:
        return self in (LinearName.GATE_UP, LinearName.DOWN)


@attrs.frozen
class LoraModule:
    """A projection of the model that an adapter may add to."""

    layer: int
    linear: LinearName
    first_row: int
    """Of the linear's rows."""
    rows: int
    columns: int


@attrs.frozen(eq=False)
class LowRank:
    """What an adapter adds to one projection of x: (x a^T) b^T."""

    a: np.ndarray
    """[rank, columns] float32."""
    b: np.ndarray
    """[rows, rank] float32, times the adapter's scaling."""


@attrs.frozen(eq=False)
class AdapterWeights:
    """An adapter in the host's memory, ready for `add_lora`. Nobody writes to it."""

    modules: Mapping[str, LowRank]
    """By the projection's name in the model: model.layers.3.self_attn.q_proj. A dummy model has none."""


def read_adapter(directory: Path, modules: Mapping[str, LoraModule], max_rank: int) -> AdapterWeights:
    """`modules` are those of the model, by name. Raises BadRequestError naming the file, and the tensor or the key."""
    config = read_lora_config(directory, max_rank)
    file = LoraFile.open(directory)
    try:
        return AdapterWeights(_read(file, config, modules))
    finally:
        file.close()


def _read(file: LoraFile, config: LoraConfig, modules: Mapping[str, LoraModule]) -> dict[str, LowRank]:
    names: dict[str, dict[str, str]] = {}
    for name in file.entries:
        match = FACTOR.fullmatch(name)
        module = "" if match is None else f"model.{match[1]}"
        if match is None or module not in modules:
            raise BadRequestError(
                f"{WEIGHTS}: tensor {shortened(name)} is for none of the projections that adapters may change here: "
                f"{', '.join(sorted({known.rpartition('.')[2] for known in modules}))} of the decoder's layers"
            )
        factors = names.setdefault(module, {})
        if (other := factors.get(match[2])) is not None:
            raise BadRequestError(f"{WEIGHTS}: tensors {shortened(other)} and {shortened(name)} are one and the same")
        factors[match[2]] = name
    if not names:
        raise BadRequestError(f"{WEIGHTS} holds no tensors")
    # All shapes first: what they may be bounds how much is read.
    for module, factors in names.items():
        _check_shapes(file, module, factors, config.rank_of(module), modules[module])
    return {
        module: LowRank(_float32(file, factors["A"]), _float32(file, factors["B"], config.scaling_of(module)))
        for module, factors in names.items()
    }


def _check_shapes(file: LoraFile, module: str, factors: Mapping[str, str], rank: int, shape: LoraModule) -> None:
    for factor, expected in (("A", [rank, shape.columns]), ("B", [shape.rows, rank])):
        if factor not in factors:
            raise BadRequestError(f"{WEIGHTS}: {module} has no lora_{factor}")
        found = file.entries[factors[factor]].shape
        if found != expected:
            raise BadRequestError(
                f"{WEIGHTS}: tensor {factors[factor]} has shape {shortened(found)}, and should have {expected}"
            )


def _float32(file: LoraFile, name: str, scaling: float = 1.0) -> np.ndarray:
    """The tensor times the scaling. Raises BadRequestError for one that has anything but finite numbers then: every
    answer would be nonsense."""
    import numpy as np  # which a process with a dummy model does not need

    entry, content = file.entries[name], file.read(name)
    if entry.dtype == "BF16":  # the upper half of a float32
        numbers = (np.frombuffer(content, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        numbers = np.frombuffer(content, dtype="<f4" if entry.dtype == "F32" else "<f2").astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = numbers * np.float32(scaling)
    if not np.isfinite(numbers).all():
        times = "" if scaling == 1.0 else f" when it is scaled by {scaling:g}, after lora_alpha and the rank"
        raise BadRequestError(f"{WEIGHTS}: tensor {shortened(name)} has infinite numbers, or what is none{times}")
    return numbers.reshape(entry.shape)
