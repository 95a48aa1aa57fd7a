"""PEFT adapters made in a test, written by hand so that they need neither torch nor peft."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file


def write_adapter(
    directory: Path,
    shapes: Mapping[str, tuple[int, int]] | None = None,
    rank: int = 4,
    seed: int = 0,
    **config: object,
) -> Path:
    """An adapter of random numbers, large enough to change every token, for modules (named as in the model) of [rows,
    columns]; of one that no model has by default, which does for a dummy one. Returns the directory."""
    random = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    for module, (rows, columns) in (shapes or {"model.layers.0.self_attn.q_proj": (16, 16)}).items():
        prefix = f"base_model.model.{module}"
        a, b = random.normal(size=(rank, columns)), random.normal(size=(rows, rank))
        tensors[f"{prefix}.lora_A.weight"] = (a / columns**0.5).astype(np.float32)
        tensors[f"{prefix}.lora_B.weight"] = (b / rank**0.5).astype(np.float32)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "adapter_model.safetensors")
    written = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": "all-linear", **config}
    (directory / "adapter_config.json").write_text(json.dumps(written))
    return directory
