"""A model that maps what the weights actor shared is the same model, and has read nothing."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
import torch

from gpu.config import ModelConfig
from gpu.load_model import load_model
from gpu.models.decoder import Decoder
from gpu.shared_loader import shared_loader
from gpu.shared_weights import WeightsOffer
from gpu.torch_runner import TorchRunner
from gpu.weights import WeightSource, open_weights
from gpu.weights_sharing import share_checkpoint
from protocol.ids import EngineIndex, Epoch, Slot
from protocol.spec import EngineSpec, SharedWeights, WeightsFacts
from protocol.step import Row
from tests.helpers.runner_conformance import Driver, params
from tests.helpers.tiny_checkpoints import VOCAB_SIZE, make_checkpoint

KINDS = ("llama_biases", "qwen2_tied", "gemma2", "qwen2_moe", "gpt_oss", "glm")
"""Untied and tied heads, biases, norms with an offset, experts with a shared one and stacked ones, sinks, and rows that
are reordered."""


def spec(checkpoint: Path, **changes: object) -> EngineSpec:
    sizes = {"block_size": 4, "num_gpu_blocks_override": 40, "device": "cpu", "dtype": "float32", "threads": 1}
    return EngineSpec(EngineIndex(0), Epoch(1), "", {}, str(checkpoint), **(sizes | changes))


def ignore(progress: float) -> None:
    pass


@pytest.fixture
def kept() -> Iterator[ExitStack]:
    with ExitStack() as kept:
        yield kept


def offered(*shares: SharedWeights) -> WeightsOffer:
    offer = WeightsOffer(0.0)
    offer.take(WeightsFacts(list(shares)))
    return offer


def logits_of(model) -> torch.Tensor:
    token_ids = [(7 * i * i + 3 * i) % VOCAB_SIZE for i in range(30)]
    with torch.inference_mode():
        computed = model.compute([Row(Slot(0), 0, token_ids, list(range(8)), True)])
        return model.logits(computed.hidden).clone()


class Unreadable:
    """A source whose tensors nobody may read."""

    def __init__(self, source: WeightSource) -> None:
        self.files, self.num_bytes = source.files, source.num_bytes
        self._source = source

    def __contains__(self, name: str) -> bool:
        return name in self._source

    def read(self, name: str, into: torch.Tensor) -> int:
        raise AssertionError(f"{name} was read")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_logits_are_the_same_to_the_last_bit_and_nothing_is_read(kind, dtype, tmp_path, kept):
    make_checkpoint(tmp_path, kind)
    share = share_checkpoint(spec(tmp_path, dtype=dtype), ignore, kept)
    alone, _ = load_model(spec(tmp_path, dtype=dtype), ignore)
    mapped, _ = load_model(spec(tmp_path, dtype=dtype), ignore, offered(share))
    assert torch.equal(logits_of(mapped), logits_of(alone))
    assert mapped.weights_bytes == alone.weights_bytes

    source = Unreadable(open_weights(tmp_path))
    loader = shared_loader(share, source, mapped.decoder.embedding.dtype, ignore)
    with torch.inference_mode():
        Decoder.load(ModelConfig.read(tmp_path), loader)


def test_the_actor_counts_what_it_made_and_tells_how_far_it_is(tmp_path, kept):
    make_checkpoint(tmp_path)
    progress: list[float] = []
    share = share_checkpoint(spec(tmp_path), progress.append, kept)
    model, _ = load_model(spec(tmp_path), ignore)
    assert share.num_bytes >= model.weights_bytes
    assert progress == sorted(progress)
    assert progress[-1] > 0.9


def test_a_runner_that_sleeps_maps_the_weights_again(tmp_path, kept):
    make_checkpoint(tmp_path)
    offer = offered(share_checkpoint(spec(tmp_path), ignore, kept))
    driver = Driver(TorchRunner.load(spec(tmp_path), ignore, offer))
    sequence = driver.admit(0, [5, 6, 7], params(4))
    driver.run(sequence)
    tags = driver.runner.sleep(2)
    assert driver.runner.wake(tags) == []
    again = driver.admit(1, [5, 6, 7], params(4))
    driver.run(again)
    assert again.tokens == sequence.tokens


def test_weights_of_files_that_have_changed_since_are_not_used(tmp_path, kept, caplog):
    make_checkpoint(tmp_path)
    share = share_checkpoint(spec(tmp_path), ignore, kept)
    os.utime(tmp_path / "model.safetensors", ns=(1, 1))
    with caplog.at_level(logging.WARNING):
        load_model(spec(tmp_path), ignore, offered(share))
    assert "the checkpoint has changed" in caplog.text


def test_weights_of_another_type_are_not_used(tmp_path, kept, caplog):
    make_checkpoint(tmp_path)
    share = share_checkpoint(spec(tmp_path), ignore, kept)
    with caplog.at_level(logging.WARNING):
        model, _ = load_model(spec(tmp_path, dtype="float16"), ignore, offered(share))
    assert model.dtype == "float16"
    assert "loads by itself" in caplog.text


def test_an_actor_that_died_in_between_costs_a_warning_and_time_only(tmp_path, caplog):
    make_checkpoint(tmp_path)
    with ExitStack() as kept:
        share = share_checkpoint(spec(tmp_path), ignore, kept)
    with caplog.at_level(logging.WARNING):
        model, _ = load_model(spec(tmp_path), ignore, offered(share))
    assert "cannot be mapped" in caplog.text
    assert torch.equal(logits_of(model), logits_of(load_model(spec(tmp_path), ignore)[0]))


def test_without_an_offer_for_this_checkpoint_an_engine_loads_by_itself(tmp_path):
    make_checkpoint(tmp_path)
    other = SharedWeights("/another", 1)
    assert load_model(spec(tmp_path), ignore, offered(other))[0].dtype == "float32"


def test_an_actor_that_is_not_heard_of_is_waited_for_only_once(tmp_path, caplog):
    make_checkpoint(tmp_path)
    offer = WeightsOffer(0.01)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            load_model(spec(tmp_path), ignore, offer)
    assert caplog.text.count("the weights actor has not been ready for") == 1


def test_what_has_been_offered_lately_counts(tmp_path, kept):
    make_checkpoint(tmp_path)
    share = share_checkpoint(spec(tmp_path), ignore, kept)
    offer = offered(msgspec.structs.replace(share, table=None))
    assert offer.wait(str(tmp_path)).table is None
    offer.take(WeightsFacts([share]))
    assert offer.wait(str(tmp_path)) == share
    offer.take(None)
    assert offer.wait(str(tmp_path)) is None
