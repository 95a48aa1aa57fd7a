"""What an engine reads of an adapter is what the adapter's id was made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.engine.adapter_loader import read_unchanged
from gpu.lora_checkpoint import AdapterWeights
from protocol.errors import BadRequestError
from protocol.lora import LoraRequest
from protocol.lora_files import lora_id_of
from tests.helpers.adapters import write_adapter


class RunnerOfChangingFiles:
    """Its adapters are written anew while it reads them, with these seeds."""

    def __init__(self, *seeds: int) -> None:
        self.seeds = list(seeds)
        self.weights = AdapterWeights({})

    def read_adapter(self, path: Path) -> AdapterWeights:
        write_adapter(path, seed=self.seeds.pop(0))
        return self.weights


def test_files_that_change_while_they_are_read_are_not_taken(tmp_path: Path):
    lora = LoraRequest("one", lora_id_of("one", write_adapter(tmp_path, seed=1)), str(tmp_path))
    runner = RunnerOfChangingFiles(1, 2)
    assert read_unchanged(runner, lora) is runner.weights
    with pytest.raises(BadRequestError, match="have been changed since"):
        read_unchanged(runner, lora)
