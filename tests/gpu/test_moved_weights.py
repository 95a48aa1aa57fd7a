"""Weights that are moved away and back are the same tensors with the same contents."""

from __future__ import annotations

import torch

from gpu.config import ModelConfig
from gpu.models.decoder import Decoder
from gpu.moved_weights import MovedWeights, tensors_in
from gpu.weights import WeightLoader, open_weights
from tests.helpers.tiny_checkpoints import make_checkpoint


def test_shared_memory_is_moved_once_and_what_shares_it_still_does():
    whole = torch.arange(12.0)
    part = whole[4:8]
    empty = torch.empty(0)
    moved = MovedWeights([whole, part, empty, torch.ones(2, dtype=torch.int8)])
    assert moved.num_bytes == 12 * 4 + 2
    assert whole.untyped_storage().nbytes() == 0
    moved.restore()
    assert torch.equal(whole, torch.arange(12.0))
    part[0] = 99
    assert whole[4] == 99


def test_every_weight_of_a_decoder_is_found(tmp_path):
    make_checkpoint(tmp_path, "mixtral")
    loader = WeightLoader(open_weights(tmp_path), torch.bfloat16, torch.device("cpu"), lambda _: None)
    decoder = Decoder.load(ModelConfig.read(tmp_path), loader)
    found = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors_in(decoder)}
    assert sum(found.values()) >= loader.num_bytes
