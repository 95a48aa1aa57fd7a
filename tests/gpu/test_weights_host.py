"""What the weights actor has for engines: a file that is there, one that it makes, or memory where no file can be."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from app.settings import default_cache_directory
from gpu import weights_sharing
from gpu.kernels import laid_out
from gpu.kernels.build import find_library
from gpu.load_model import load_model
from gpu.native_model import NativeModel
from gpu.shared_weights import WeightsOffer
from gpu.torch_model import TorchModel
from gpu.weights_host import WeightsHost, find_laid_out
from protocol.errors import CheckpointError
from protocol.ids import EngineIndex, Epoch, Slot
from protocol.spec import DraftModelSpec, EngineSpec, SharedWeights, WeightsFacts
from protocol.step import Row
from tests.helpers import tiny_checkpoints
from tests.helpers.wide_checkpoints import VOCAB_SIZE, make_checkpoint


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Has the built kernels that the user's cache has, and nothing laid out."""
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "kernels").symlink_to(default_cache_directory() / "kernels")
    return cache


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    make_checkpoint(tmp_path / "model", "llama", torch.bfloat16)
    return tmp_path / "model"


def spec(checkpoint: Path, cache: Path | None, **changes: object) -> EngineSpec:
    sizes = {"num_gpu_blocks_override": 40, "threads": 1} | changes
    cached = None if cache is None else str(cache)
    return EngineSpec(EngineIndex(0), Epoch(1), "", {}, str(checkpoint), cache_directory=cached, **sizes)


def ignore(progress: float) -> None:
    pass


def share(host: WeightsHost) -> SharedWeights:
    (found,) = host.share(ignore).shares
    return found


def logits_of(model: NativeModel | TorchModel) -> torch.Tensor:
    token_ids = [(7 * i * i + 3 * i) % VOCAB_SIZE for i in range(30)]
    with torch.inference_mode():
        return model.logits(model.compute([Row(Slot(0), 0, token_ids, [3, 2], True)]).hidden).clone()


def mapped_model(spec: EngineSpec, share: SharedWeights, monkeypatch: pytest.MonkeyPatch) -> NativeModel:
    """Loaded where laying out is forbidden."""

    def forbidden(*_: object) -> None:
        raise AssertionError("weights are laid out in the engine")

    offer = WeightsOffer(0.0)
    offer.take(WeightsFacts([share]))
    with monkeypatch.context() as patch:
        patch.setattr(laid_out, "lay_out", forbidden)
        model, _ = load_model(spec, ignore, offer)
    assert isinstance(model, NativeModel)
    return model


def test_the_file_is_made_once_and_found_afterwards(checkpoint, cache, monkeypatch):
    wanted = spec(checkpoint, cache)
    assert find_library(default_cache_directory()) is not None, "built by tests before this one, or by any server"
    assert find_laid_out(wanted) is None
    with WeightsHost(wanted) as host:
        made = share(host)
    assert made.laid_out.path.startswith(str(cache))
    monkeypatch.setattr(weights_sharing, "share_checkpoint", lambda *_: pytest.fail("it was there"))
    with WeightsHost(wanted) as host:
        assert share(host) == made == find_laid_out(wanted)
    mapped_model(wanted, made, monkeypatch)


@pytest.mark.parametrize("reason", ["no cache", "a full disk"])
def test_where_no_file_can_be_it_is_laid_out_in_memory_once_for_all(reason, checkpoint, cache, monkeypatch, caplog):
    alone, _ = load_model(spec(checkpoint, cache), ignore)
    if reason == "a full disk":
        (cache / "laid-out").rename(cache / "elsewhere")
        (cache / "laid-out").write_text("a file where a directory should be")
    wanted = spec(checkpoint, cache if reason == "a full disk" else None)
    monkeypatch.setattr("gpu.load_model.open_library", lambda _: load_library(cache))
    with caplog.at_level(logging.WARNING), WeightsHost(wanted) as host:
        memory = share(host)
        assert memory.laid_out.path.startswith("/proc/")
        one, other = (mapped_model(wanted, memory, monkeypatch) for _ in range(2))
    assert torch.equal(logits_of(one), logits_of(alone))
    assert torch.equal(logits_of(other), logits_of(alone))
    assert ("laid out again at each start" in caplog.text) == (reason == "a full disk")


def test_what_was_laid_out_of_files_that_have_changed_since_is_not_mapped(checkpoint, cache, monkeypatch, caplog):
    """Else an engine that is started again would compute with some weights of each."""
    with WeightsHost(spec(checkpoint, cache)) as host:
        old = share(host)
    make_checkpoint(checkpoint, "llama", torch.float16)
    alone, _ = load_model(spec(checkpoint, None), ignore)
    offer = WeightsOffer(0.0)
    offer.take(WeightsFacts([old]))
    changed, _ = load_model(spec(checkpoint, cache), ignore, offer)
    assert torch.equal(logits_of(changed), logits_of(alone))
    assert "the checkpoint has changed since the weights were shared" in caplog.text


def load_library(cache: Path):
    from gpu.kernels.library import open_library

    return open_library(cache)


def test_a_file_that_is_cut_off_is_made_again(checkpoint, cache):
    wanted = spec(checkpoint, cache)
    with WeightsHost(wanted) as host:
        path = Path(share(host).laid_out.path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    assert find_laid_out(wanted) is None
    with WeightsHost(wanted) as host:
        share(host)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("changes", [{"dtype": "float32"}, {"dtype": "bfloat16"}, {"block_size": 8}])
def test_an_engine_that_computes_with_torch_gets_tensors_though_the_file_is_there(changes, checkpoint, cache):
    with WeightsHost(spec(checkpoint, cache)) as host:
        share(host)
    with WeightsHost(spec(checkpoint, cache, **changes)) as host:
        found = share(host)
        assert found.laid_out is None
        assert found.table is not None


def test_a_draft_model_is_shared_too(checkpoint, cache, tmp_path):
    make_checkpoint(tmp_path / "draft", "llama", torch.float16)
    progress: list[float] = []
    speculative = DraftModelSpec(2, str(tmp_path / "draft"))
    with WeightsHost(spec(checkpoint, cache, speculative=speculative)) as host:
        shares = host.share(progress.append).shares
    assert [one.checkpoint for one in shares] == [str(checkpoint), str(tmp_path / "draft")]
    assert progress == sorted(progress)
    assert progress[-1] == 1.0


def test_where_there_is_no_memory_engines_load_by_themselves(tmp_path, monkeypatch, caplog):
    tiny_checkpoints.make_checkpoint(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    with caplog.at_level(logging.WARNING), WeightsHost(spec(tmp_path, None, dtype="float32")) as host:
        assert host.share(ignore).shares == []
    assert "loads" in caplog.text
    assert "No space left on device" in caplog.text


@pytest.mark.parametrize("changes", [{"quantization": "fp8"}, {"batch_invariant": True}, {"dtype": "int8"}])
def test_what_an_engine_will_refuse_is_left_for_it_to_refuse(changes, tmp_path):
    tiny_checkpoints.make_checkpoint(tmp_path)
    with WeightsHost(spec(tmp_path, None, **changes)) as host:
        assert host.share(ignore).shares == []


@pytest.mark.parametrize("damage", ["a tensor is missing", "cut off"])
def test_what_no_engine_could_load_is_the_same_error_as_an_engines(damage, tmp_path):
    tiny_checkpoints.make_checkpoint(tmp_path)
    weights = tmp_path / "model.safetensors"
    if damage == "cut off":
        weights.write_bytes(weights.read_bytes()[:-1])
    else:
        weights.write_bytes(weights.read_bytes().replace(b"model.norm.weight", b"model.none.weight"))
    with pytest.raises(CheckpointError) as engines:
        load_model(spec(tmp_path, None), ignore)
    with pytest.raises(CheckpointError) as actors, WeightsHost(spec(tmp_path, None)) as host:
        host.share(ignore)
    assert actors.value.message == engines.value.message


def test_finding_the_file_imports_neither_torch_nor_numpy(checkpoint, cache):
    with WeightsHost(spec(checkpoint, cache)) as host:
        share(host)
    code = f"""
import sys, actors.weights.main
from gpu.weights_host import find_laid_out
from protocol.spec import EngineSpec
print(find_laid_out(EngineSpec(0, 1, "", {{}}, {str(checkpoint)!r}, cache_directory={str(cache)!r})) is not None)
print({{"torch", "numpy", "transformers"}} & sys.modules.keys())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.split() == ["True", "set()"]
