"""Weights through gguf.json: every quantisation against the gguf package, names, row order, and damaged files."""

from __future__ import annotations

import json
import shutil

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from gpu.gguf_names import gguf_name
from gpu.gguf_quantisations import QUANTISATIONS
from gpu.gguf_weights import GgufWeights, unpermuted
from gpu.torch_runner import TorchRunner
from protocol.errors import CheckpointError
from protocol.ids import EngineIndex, Epoch
from protocol.spec import EngineSpec
from tests.helpers.runner_conformance import Driver, params
from tests.helpers.tiny_checkpoints import make_checkpoint

CONFIG = {"num_attention_heads": 2, "hidden_size": 16}
SCALES = {
    "Q2_K": slice(80, 84),
    "Q3_K": slice(108, 110),
    "Q4_K": slice(0, 4),
    "Q5_K": slice(0, 4),
    "Q6_K": slice(208, 210),
    "IQ4_NL": slice(0, 2),
    "IQ4_XS": slice(0, 2),
}
"""Where the formats that the gguf package does not write have their float16."""


def write(directory, tensors: dict[str, tuple[str, list[int], bytes]], architecture="qwen2", **index: object):
    """A file of raw tensors at aligned offsets behind some header, and its gguf.json; returns the index's path."""
    data, entries = bytearray(b"GGUF".ljust(96)), []
    for name, (kind, shape, raw) in tensors.items():
        entries.append({"name": name, "type": kind, "shape": shape, "offset": len(data), "nbytes": len(raw)})
        data += raw + bytes(-len(raw) % 32)
    (directory / "model.gguf").write_bytes(data)
    whole = {
        "version": 1,
        "file": str(directory / "model.gguf"),
        "size": len(data),
        "architecture": architecture,
        "tensors": entries,
    }
    (directory / "gguf.json").write_text(json.dumps(whole | index))
    if not (directory / "config.json").exists():
        (directory / "config.json").write_text(json.dumps(CONFIG))
    return directory / "gguf.json"


def raw_blocks(kind: str, rows: int, columns: int) -> np.ndarray:
    """[rows, bytes] of this type, with finite scales."""
    generator = np.random.default_rng(3)
    if kind in SCALES:
        quantisation = QUANTISATIONS[kind]
        blocks = generator.integers(
            0, 256, (rows * columns // quantisation.block, quantisation.block_bytes), dtype=np.uint8
        )
        scales = np.float16([0.01, 0.3]).view(np.uint8)
        blocks[:, SCALES[kind]] = scales[: blocks[:, SCALES[kind]].shape[1]]
        return blocks.reshape(rows, -1)
    values = generator.standard_normal((rows, columns), dtype=np.float32)
    if kind == "F16":
        return values.astype(np.float16).view(np.uint8)
    return gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind]).view(np.uint8)


@pytest.mark.parametrize("kind", sorted(QUANTISATIONS))
def test_each_type_unpacks_as_the_gguf_package_does(tmp_path, kind):
    raw = raw_blocks(kind, 6, 512)
    source = GgufWeights.open(write(tmp_path, {"output.weight": (kind, [6, 512], raw.tobytes())}))
    found = torch.empty(6, 512)
    assert source.read("lm_head.weight", found) == raw.nbytes
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind]).astype(np.float32)
    assert found.isfinite().all()
    torch.testing.assert_close(found, torch.from_numpy(expected.reshape(6, 512)), atol=0, rtol=1e-6)


def permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order, as its converter makes it."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


@pytest.mark.parametrize("kind", ["llama", "llama_biases", "qwen2_tied", "qwen3"])
def test_a_model_in_gguf_gives_what_its_safetensors_give(tmp_path, kind):
    checkpoint, converted = tmp_path / "a", tmp_path / "b"
    model = make_checkpoint(checkpoint, kind)
    shutil.copytree(checkpoint, converted, ignore=shutil.ignore_patterns("*.safetensors"))
    architecture = kind.partition("_")[0]
    tensors = {}
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        values = tensor.float().numpy()
        heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
        projection = name.split(".")[-2]
        if architecture == "llama" and projection in heads:
            values = permuted(values, heads[projection])
        tensors[gguf_name(name, architecture)[0]] = ("F32", list(values.shape), values.tobytes())
    if kind == "llama_biases":  # llama.cpp's names stop at known tensors: all of ours must have become one
        assert all(name.startswith(("blk.", "token_embd.", "output")) for name in tensors)
    write(converted, tensors, architecture)
    results = []
    for directory in (checkpoint, converted):
        spec = EngineSpec(
            EngineIndex(0), Epoch(1), "", {}, str(directory), device="cpu", threads=1, num_gpu_blocks_override=8
        )
        driver = Driver(TorchRunner.load(spec, lambda progress: None))
        sequence = driver.admit(0, list(range(20)), params(10, logprobs=5, prompt_logprobs=5))
        driver.run(sequence)
        results.append((sequence.sampled, sequence.prompt_logprobs))
    assert results[0] == results[1]


def test_unpermuting_undoes_the_converters_order_for_matrices_and_biases():
    for shape in ((24, 5), (24,)):
        rows = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
        assert np.array_equal(unpermuted(torch.from_numpy(permuted(rows, 3)), 8).numpy(), rows)


def refusal(index, read: tuple[int, ...] = (4, 32)) -> str:
    with pytest.raises(CheckpointError) as caught:
        GgufWeights.open(index).read("lm_head.weight", torch.empty(read))
    return caught.value.message


def test_damage_is_named(tmp_path):
    whole = ("F32", [4, 32], bytes(4 * 4 * 32))
    assert "output.weight has type IQ2_XS" in refusal(write(tmp_path, {"output.weight": ("IQ2_XS", *whole[1:])}))
    assert "output.weight of shape [4, 32] is missing" in refusal(write(tmp_path, {"output.bias": whole}))
    wrong = refusal(write(tmp_path, {"output.weight": whole}), (4, 33))
    assert "output.weight has shape [4, 32], and config.json asks for [4, 33]" in wrong
    assert "should take 512 bytes" in refusal(write(tmp_path, {"output.weight": (*whole[:2], whole[2][:-4])}))
    assert "should take" in refusal(write(tmp_path, {"output.weight": ("Q4_1", [4, 30], bytes(80))}), (4, 30))
    assert "version 2" in refusal(write(tmp_path, {"output.weight": whole}, version=2))
    assert "architecture 'mamba'" in refusal(write(tmp_path, {"output.weight": whole}, "mamba"))
    assert "is damaged" in refusal(write(tmp_path, {"output.weight": whole}, size="big"))
    index = write(tmp_path, {"output.weight": whole})
    (tmp_path / "model.gguf").write_bytes((tmp_path / "model.gguf").read_bytes()[:-1])
    assert "truncated or replaced" in refusal(index)
    (tmp_path / "model.gguf").unlink()
    assert "cannot be read: No such file" in refusal(index)
