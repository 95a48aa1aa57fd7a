"""Engines whose blocks mean the same have equal layouts, wherever their checkpoints lie; all others have not."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
import torch

from app.settings import default_cache_directory
from gpu.kv_layout import END_BYTES, SAMPLE_BYTES, STRIDE_BYTES, WeightFile, kv_layout
from gpu.load_model import load_model
from protocol.ids import EngineIndex, Epoch
from protocol.kv import KvLayout
from protocol.parallel import ParallelSpec
from protocol.spec import EngineSpec, LoadFormat
from tests.helpers import tiny_checkpoints, wide_checkpoints


def spec(checkpoint: Path, **changes: object) -> EngineSpec:
    sizes = {"num_gpu_blocks_override": 8, "device": "cpu", "threads": 1} | changes
    cache = str(default_cache_directory())
    return EngineSpec(EngineIndex(0), Epoch(1), "", {}, str(checkpoint), cache_directory=cache, **sizes)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("narrow")
    tiny_checkpoints.make_checkpoint(directory)
    return directory


@pytest.fixture(scope="module")
def wide(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("wide")
    wide_checkpoints.make_checkpoint(directory, "llama", torch.bfloat16)
    return directory


def layout_of(checkpoint: Path, **changes: object) -> KvLayout:
    """Of an engine that has loaded it."""
    asked = spec(checkpoint, **changes)
    model, _ = load_model(asked, lambda _: None)
    layout = kv_layout(asked, model.block_kind, model.block_bytes)
    model.close()
    assert layout is not None
    return layout


def test_it_is_the_same_for_a_copy_elsewhere_and_another_number_of_blocks(narrow, tmp_path):
    expected = layout_of(narrow)
    shutil.copytree(narrow, tmp_path / "copy")
    (tmp_path / "copy" / "model.safetensors").touch()
    changes = {"num_gpu_blocks_override": 20, "max_model_len": 64, "max_num_seqs": 3, "max_loras": 2}
    assert layout_of(tmp_path / "copy", **changes) == expected
    assert layout_of(narrow, dtype="float32") == expected  # what "auto" is there


def test_types_sizes_and_who_computes_tell_layouts_apart(narrow, wide):
    found = [
        layout_of(narrow),
        layout_of(narrow, dtype="bfloat16"),
        layout_of(narrow, kv_cache_dtype="fp8"),
        layout_of(narrow, kv_cache_dtype="fp8_e5m2"),
        layout_of(narrow, block_size=32),
        layout_of(wide),
        layout_of(wide, dtype="int8"),
        layout_of(wide, dtype="float16"),  # of the same bytes per block as the kernels'
    ]
    assert len({layout.digest for layout in found}) == len(found)
    assert found[5].piece_bytes == found[7].piece_bytes
    assert [layout.block_size for layout in found] == [16, 16, 16, 16, 32, 16, 16, 16]
    assert found[2].piece_bytes == [found[0].piece_bytes[0] // 4]


def test_how_the_model_is_cut_and_quantised_tells_layouts_apart(narrow):
    asked = [
        spec(narrow),
        spec(narrow, quantization="fp8"),
        *(spec(narrow, parallel=parallel) for parallel in (ParallelSpec(2), ParallelSpec(1, 2))),
    ]
    found = [kv_layout(one, "same", [64]) for one in asked]
    assert len({layout.digest for layout in found if layout is not None}) == 4


@pytest.mark.parametrize("place", [0, -1])
def test_weights_that_were_trained_on_are_others(narrow, tmp_path, place):
    shutil.copytree(narrow, tmp_path / "trained")
    path = tmp_path / "trained" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    found = [kv_layout(spec(directory), "same", [64]) for directory in (narrow, tmp_path / "trained")]
    assert found[0] != found[1]


def test_both_ends_of_a_long_file_are_looked_at_and_some_of_what_is_between(tmp_path):
    path = tmp_path / "weights"
    content = bytearray(4 * END_BYTES)
    path.write_bytes(content)
    plain = WeightFile.of(path)
    second = END_BYTES + STRIDE_BYTES
    for place, is_seen in (
        (END_BYTES - 1, True),
        (END_BYTES + SAMPLE_BYTES, False),
        (second, True),
        (second + SAMPLE_BYTES - 1, True),
        (second + SAMPLE_BYTES, False),
        (3 * END_BYTES, True),
    ):
        path.write_bytes(content[:place] + b"x" + content[place + 1 :])
        assert (WeightFile.of(path) != plain) == is_seen


def test_another_configuration_is_another_layout(narrow, tmp_path):
    shutil.copytree(narrow, tmp_path / "changed")
    config = msgspec.json.decode((tmp_path / "changed" / "config.json").read_bytes())
    (tmp_path / "changed" / "config.json").write_bytes(msgspec.json.encode(config | {"rms_norm_eps": 0.5}))
    assert kv_layout(spec(narrow), "same", [64]) != kv_layout(spec(tmp_path / "changed"), "same", [64])


def test_keys_of_short_and_of_long_contexts_are_told_apart(tmp_path):
    """longrope has other frequencies where sequences may be long."""
    tiny_checkpoints.save_checkpoint(tmp_path, tiny_checkpoints.phi3_longrope(original=64))
    short = [layout_of(tmp_path, max_model_len=length) for length in (64, 32)]
    long = [layout_of(tmp_path, max_model_len=length) for length in (65, 100)]
    assert short[0] == short[1]
    assert long[0] == long[1] != short[0]


def test_a_checkpoint_that_is_gone_leaves_an_engine_without_a_layout(tmp_path, caplog):
    assert kv_layout(spec(tmp_path / "nowhere"), "kind", [64]) is None
    assert "cannot be told from others" in caplog.text


def test_the_dummy_s_is_of_its_configuration_and_block_size(tmp_path):
    (tmp_path / "config.json").write_text('{"vocab_size": 64}')
    dummy = spec(tmp_path, load_format=LoadFormat.DUMMY)
    found = [
        kv_layout(one, "dummy", [8 * one.block_size]) for one in (dummy, msgspec.structs.replace(dummy, block_size=32))
    ]
    assert found[0] is not None
    assert found[0] != found[1]
