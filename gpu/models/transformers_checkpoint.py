"""Loads a checkpoint with transformers, for models that our decoder does not compute, and refuses what is not served.

Needs the extra "transformers". From safetensors only, and without running code that lies in the checkpoint. Used by
gpu/load_model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gpu.models.transformers_attention import NAME, attention_function
from gpu.models.transformers_model import TransformersModel
from protocol.errors import CheckpointError


def load_transformers(
    checkpoint: Path, reason: str, dtype: Callable[[str | None], torch.dtype], device: torch.device
) -> TransformersModel:
    """Load the checkpoint with transformers; `reason` says why our decoder does not compute it, `dtype` picks the data
    type, knowing config.json's. Raises CheckpointError, also for a checkpoint that needs code of its own."""
    try:
        import transformers
    except ImportError as error:
        raise CheckpointError(
            f"{reason}. Other models are computed with transformers, which is not installed: install trillm with its "
            "extra 'transformers' (in a checkout: scripts/install transformers)"
        ) from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    transformers.AttentionInterface.register(NAME, attention_function)
    options = {"trust_remote_code": False, "local_files_only": True}
    try:
        config = transformers.AutoConfig.from_pretrained(checkpoint, **options)
        _refuse(checkpoint, config)
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            checkpoint,
            config=config,
            dtype=dtype(None if config.dtype is None else str(config.dtype).removeprefix("torch.")),
            attn_implementation=NAME,
            use_safetensors=True,
            output_loading_info=True,
            **options,
        )
        _refuse_loaded(checkpoint, model, info)
        return TransformersModel(model.eval().requires_grad_(False).to(device), device)
    except KeyError as error:
        if error.args != (NAME,):
            raise CheckpointError(f"{reason}. transformers {transformers.__version__} misses {error}") from error
        raise CheckpointError(f"{reason}. transformers' code for it does not let its attention be replaced") from error
    except (ValueError, OSError, ImportError, RuntimeError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{reason}. transformers {transformers.__version__} does not compute it here either, without running code "
            f"from the checkpoint, from safetensors only: {error}"
        ) from error


def _refuse(checkpoint: Path, config: Any) -> None:  # noqa: ANN401
    """Raises CheckpointError for what the loading test could not see."""
    if getattr(config, "quantization_config", None) is not None:
        raise CheckpointError(f"{checkpoint}: quantization_config is not computed with transformers' code here")
    if config.is_encoder_decoder:
        raise CheckpointError(f"{checkpoint}: {config.model_type} has an encoder, which is not served")
    if getattr(config.get_text_config(), "attention_chunk_size", None) is not None:
        raise CheckpointError(f"{checkpoint}: attention within chunks (attention_chunk_size) is not served")


def _refuse_loaded(checkpoint: Path, model: Any, info: dict[str, Any]) -> None:  # noqa: ANN401
    if type(model).__name__ not in (model.config.architectures or []):
        raise CheckpointError(f"{checkpoint}: {model.config.architectures} is no causal language model of transformers")
    if model._is_stateful:
        raise CheckpointError(
            f"{checkpoint}: {type(model).__name__} keeps state beside keys and values, which is not served"
        )
    if missing := sorted(info["missing_keys"]):
        raise CheckpointError(f"{checkpoint}: {len(missing)} tensors are missing, {missing[0]} first")
