"""Which adapters are read, and what is said of those that are not."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from gpu.lora_checkpoint import LinearName, LoraModule, read_adapter
from protocol.errors import BadRequestError
from tests.helpers.adapters import write_adapter

Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"
SHAPES = {Q: (8, 12), DOWN: (12, 20)}
MODULES = {name: LoraModule(0, LinearName.QKV, 0, *shape) for name, shape in SHAPES.items()}


def refusal(directory, max_rank=16):
    with pytest.raises(BadRequestError) as caught:
        read_adapter(directory, MODULES, max_rank)
    return caught.value.message


def test_b_comes_with_the_scaling_of_its_module(tmp_path):
    plain = read_adapter(write_adapter(tmp_path / "plain", SHAPES), MODULES, 16)
    scaled = read_adapter(
        write_adapter(tmp_path / "scaled", SHAPES, lora_alpha=8, alpha_pattern={"mlp.down_proj": 2}), MODULES, 16
    )

    assert scaled.modules[Q].b == pytest.approx(plain.modules[Q].b * 2)
    assert scaled.modules[DOWN].b == pytest.approx(plain.modules[DOWN].b / 2)
    assert np.array_equal(scaled.modules[Q].a, plain.modules[Q].a)


def test_rslora_divides_by_the_root_of_the_rank(tmp_path):
    plain = read_adapter(write_adapter(tmp_path / "plain", SHAPES), MODULES, 16)
    stabilised = read_adapter(write_adapter(tmp_path / "rs", SHAPES, use_rslora=True), MODULES, 16)

    assert stabilised.modules[Q].b == pytest.approx(plain.modules[Q].b * 2)


def test_what_is_not_computed_is_refused_by_its_key(tmp_path):
    for key, value in {"use_dora": True, "modules_to_save": ["lm_head"], "fan_in_fan_out": True}.items():
        assert key in refusal(write_adapter(tmp_path / key, SHAPES, **{key: value}))
    assert "init_lora_weights pissa" in refusal(write_adapter(tmp_path / "start", SHAPES, init_lora_weights="pissa"))
    assert "bias all" in refusal(write_adapter(tmp_path / "bias", SHAPES, bias="all"))
    assert "peft_type VERA" in refusal(write_adapter(tmp_path / "type", SHAPES, peft_type="VERA"))
    assert "rank_pattern" in refusal(write_adapter(tmp_path / "pattern", SHAPES, rank_pattern={"(a+)+": 4}))


def test_a_rank_above_the_limit_is_refused_with_both(tmp_path):
    assert "rank 8 is not within 1 and 4 (--max-lora-rank)" in refusal(write_adapter(tmp_path, SHAPES, rank=8), 4)


def test_a_module_that_the_model_lacks_is_refused_with_those_that_it_has(tmp_path):
    message = refusal(write_adapter(tmp_path, {"lm_head": (40, 12)}))

    assert "base_model.model.lm_head.lora_A.weight" in message
    assert "down_proj, q_proj" in message


def test_a_wrong_shape_is_refused_with_the_right_one(tmp_path):
    assert "has shape [4, 13], and should have [4, 12]" in refusal(write_adapter(tmp_path, {Q: (8, 13)}))
    assert "[2, 12]" in refusal(write_adapter(tmp_path, SHAPES, rank_pattern={"q_proj": 2}))


def test_files_that_are_missing_or_damaged_are_refused(tmp_path):
    for nowhere in ("nowhere", "null\0byte"):
        assert "no adapter_config.json that can be read" in refusal(tmp_path / nowhere)
    directory = write_adapter(tmp_path / "adapter", SHAPES)
    weights = directory / "adapter_model.safetensors"
    whole = weights.read_bytes()
    for cut in (0, 7, 20, len(whole) - 1):
        weights.write_bytes(whole[:cut])
        assert "adapter_model.safetensors" in refusal(directory)
    weights.write_bytes(whole[:8] + b"x" * (len(whole) - 8))
    assert "is no safetensors file" in refusal(directory)
    weights.unlink()
    os.mkfifo(weights)
    assert "is no file" in refusal(directory)


def test_a_config_that_is_none_is_refused(tmp_path):
    directory = write_adapter(tmp_path, SHAPES)
    config = directory / "adapter_config.json"
    for content in ("[]", "{", json.dumps({"peft_type": "LORA", "r": "many"}), json.dumps({"r": 4})):
        config.write_text(content)
        assert "is no config of a LoRA adapter" in refusal(directory)
    config.write_text(" " * (1 << 21))
    assert "adapter_config.json has 2097152 bytes; at most 1048576" in refusal(directory)


def test_half_of_a_pair_is_refused(tmp_path):
    directory = write_adapter(tmp_path, SHAPES)
    weights = directory / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes().replace(b"q_proj.lora_B", b"q_proj.lora_A", 1))

    assert "adapter_model.safetensors" in refusal(directory)


def test_a_tensor_that_is_there_twice_is_refused(tmp_path):
    """With the prefix of a model that has a head, and with that of one that has none."""
    twice = {Q: SHAPES[Q], Q.removeprefix("model."): SHAPES[Q]}
    assert "are one and the same" in refusal(write_adapter(tmp_path, twice))


def test_a_tensor_of_more_dimensions_than_there_are_is_refused(tmp_path):
    directory = write_adapter(tmp_path, SHAPES)
    entry = {"dtype": "F32", "shape": [2**62] * 9, "data_offsets": [0, 0]}
    header = json.dumps({"x": entry}).encode()
    (directory / "adapter_model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert "is no safetensors file" in refusal(directory)


def with_header(directory, header):
    """The adapter with another header, and no tensors behind it."""
    (directory / "adapter_model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return directory


def test_a_name_that_is_twice_in_the_header_is_refused_by_it(tmp_path):
    directory = write_adapter(tmp_path, SHAPES)
    entry = '{"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}'
    twice = [f'{{"x": {entry}, "x": {entry}}}', '{"x": {"dtype": "F32", "x": 1, "x": 2}}']
    for header in twice:
        assert "x is there twice in its header" in refusal(with_header(directory, header.encode()))


def test_numbers_of_thousands_of_digits_and_deep_nests_are_refused_in_a_few_words(tmp_path):
    directory = write_adapter(tmp_path, SHAPES)
    for digits in (4000, 5000):
        huge = "9" * digits
        for shape, offset in ((huge, "0"), ("0", huge)):
            entry = f'{{"x": {{"dtype": "F32", "shape": [{shape}], "data_offsets": [0, {offset}]}}}}'
            message = refusal(with_header(directory, entry.encode()))
            assert len(message) < 400
        (directory / "adapter_config.json").write_text(f'{{"peft_type": "LORA", "r": {huge}}}')
        assert len(refusal(directory)) < 400
        write_adapter(tmp_path, SHAPES)
    assert "is no safetensors file" in refusal(with_header(directory, b'{"x":' + b"[" * 100_000))
    (directory / "adapter_config.json").write_text('{"r":' + "[" * 100_000)
    assert "is no config" in refusal(directory)


@pytest.mark.parametrize("alpha", [1e300, 3e38])
def test_a_scaling_that_makes_weights_infinite_is_refused_by_name(tmp_path, alpha):
    message = refusal(write_adapter(tmp_path, SHAPES, rank=1, lora_alpha=alpha))
    assert "lora_B.weight has infinite numbers" in message
    assert "lora_alpha" in message


def test_what_is_said_is_short(tmp_path):
    long = "x" * 100_000
    for number, shapes in enumerate(({f"model.{long}": (8, 12)}, SHAPES)):
        message = refusal(write_adapter(tmp_path / str(number), shapes, bias="none" if number == 0 else long))
        assert len(message) < 400
