"""Weights that are moved away and back are the same tensors with the same contents."""

from __future__ import annotations

import pytest
import torch

from gpu.config import ModelConfig
from gpu.layers.linear import PlainLinear
from gpu.layers.parallel import RowParallelLinear
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


class FullDevice:
    """A storage that there is no room for, the first time."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._storage = storage
        self._is_full = True

    def resize_(self, num_bytes: int) -> None:
        if num_bytes and self._is_full:
            self._is_full = False
            raise torch.OutOfMemoryError("CUDA out of memory")
        self._storage.resize_(num_bytes)

    def copy_(self, source: torch.UntypedStorage) -> None:
        self._storage.copy_(source)


def test_weights_come_back_all_together_or_not_at_all():
    weights = [torch.arange(3.0), torch.arange(5.0), torch.arange(2.0)]
    moved = MovedWeights(weights)
    storage, kept = moved._kept[1]
    moved._kept[1] = (FullDevice(storage), kept)
    with pytest.raises(torch.OutOfMemoryError):
        moved.restore()
    assert [weight.untyped_storage().nbytes() for weight in weights] == [0, 0, 0]
    moved.restore()
    assert [weight.tolist() for weight in weights] == [[0, 1, 2], [0, 1, 2, 3, 4], [0, 1]]


def test_every_weight_of_a_decoder_is_found(tmp_path):
    make_checkpoint(tmp_path, "mixtral")
    loader = WeightLoader(open_weights(tmp_path), torch.bfloat16, torch.device("cpu"), lambda _: None)
    decoder = Decoder.load(ModelConfig.read(tmp_path), loader)
    found = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors_in(decoder)}
    assert sum(found.values()) >= loader.num_bytes


def test_what_ranks_exchange_tensors_through_stays_where_it_is():
    class Exchange:
        def __init__(self) -> None:
            self.memory = torch.zeros(3)

    Exchange.__module__ = "gpu.groups.exchange"
    weight = torch.zeros(4, 4)
    assert list(tensors_in(RowParallelLinear(PlainLinear(weight, None), None, Exchange()))) == [weight]
