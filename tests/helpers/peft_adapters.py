"""Adapters that PEFT makes, saves and computes: the oracle for ours. Importing this imports torch."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel
from transformers import PreTrainedModel

EVERY = {"r": 4, "lora_alpha": 12, "target_modules": "all-linear"}
SOME = {
    "r": 6,
    "lora_alpha": 3,
    "use_rslora": True,
    "target_modules": ["q_proj", "v_proj", "o_proj"],
    "rank_pattern": {"v_proj": 3},
    "alpha_pattern": {"layers.1.self_attn.q_proj": 9},
}


class PeftOracle:
    """A reference model with random adapters, each of which is written as a directory too."""

    def __init__(self, model: PreTrainedModel, directory: Path, **configs: dict[str, object]) -> None:
        """`configs` are LoraConfig's arguments by the adapter's name."""
        self.directory = directory
        torch.manual_seed(5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # at what peft calls of transformers
            made: PeftModel | None = None
            for name, config in configs.items():
                lora = LoraConfig(**config, init_lora_weights=False)
                if made is None:
                    made = PeftModel(model, lora, adapter_name=name)
                else:
                    made.add_adapter(name, lora)
            assert made is not None, "an oracle without adapters"
            self.model = made.eval()
            self.model.save_pretrained(directory)

    def path(self, name: str) -> Path:
        return self.directory / name

    @torch.inference_mode()
    def logits(self, name: str | None, token_ids: list[int]) -> torch.Tensor:
        """[tokens, vocab]; None is the model alone."""
        if name is None:
            with self.model.disable_adapter():
                return self.model(torch.tensor([token_ids])).logits[0]
        self.model.set_adapter(name)
        return self.model(torch.tensor([token_ids])).logits[0]

    @torch.inference_mode()
    def merged_logits(self, name: str, token_ids: list[int]) -> torch.Tensor:
        """With the adapter added into the weights, for good."""
        self.model.set_adapter(name)
        return self.model.merge_and_unload(adapter_names=[name])(torch.tensor([token_ids])).logits[0]
