"""Some rows and columns of a tensor are those of the whole one, in every format, and no more is read."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from app.checkpoints.gguf_checkpoint import open_gguf
from gpu.gguf_quantisations import QUANTISATIONS
from gpu.gguf_weights import GgufWeights
from gpu.span import Span, parts_of
from gpu.weights import WeightSource, open_weights
from protocol.errors import CheckpointError
from tests.gpu.test_gguf_weights import write
from tests.gpu.test_stacked_experts import quantised
from tests.helpers.gguf_models import KINDS, write_model
from tests.helpers.tiny_checkpoints import gpt_oss, make_checkpoint, save_checkpoint

LAYER = "model.layers.0."
EXPERT = f"{LAYER}mlp.experts.3."


def cut(source: WeightSource, name: str, rows: Span, columns: Span | None) -> tuple[torch.Tensor, int]:
    into = torch.empty(rows.count if columns is None else (rows.count, columns.count))
    return into, source.read_cut(name, into, rows, columns)


def assert_cut(source: WeightSource, name: str, rows: Span, columns: Span | None = None) -> tuple[int, int]:
    """Returns the bytes read of the part, and of the whole."""
    whole = torch.empty(rows.whole if columns is None else (rows.whole, columns.whole))
    all_bytes = source.read(name, whole)
    found, read_bytes = cut(source, name, rows, columns)
    expected = whole[rows.slice] if columns is None else whole[rows.slice, columns.slice]
    assert torch.equal(found, expected)
    return read_bytes, all_bytes


def test_rows_and_columns_of_safetensors(tmp_path):
    make_checkpoint(tmp_path, "llama_biases")
    source = open_weights(tmp_path)
    assert assert_cut(source, f"{LAYER}mlp.down_proj.weight", Span.all_of(48), Span(13, 20, 80)) == (3840, 15360)
    assert assert_cut(source, f"{LAYER}mlp.up_proj.weight", Span(70, 10, 80), Span.all_of(48)) == (1920, 15360)
    assert assert_cut(source, f"{LAYER}mlp.up_proj.bias", Span(7, 3, 80)) == (12, 320)


@pytest.mark.parametrize("in_mxfp4", [False, True])
def test_rows_and_columns_of_stacked_experts(tmp_path, in_mxfp4):
    if in_mxfp4:
        quantised(tmp_path)
    else:
        save_checkpoint(tmp_path, gpt_oss())
    source = open_weights(tmp_path)
    for name in ("gate", "up"):
        assert_cut(source, f"{EXPERT}{name}_proj.weight", Span(5, 11, 32), Span.all_of(64))
        assert_cut(source, f"{EXPERT}{name}_proj.weight", Span(31, 1, 32), Span(33, 20, 64))
        assert_cut(source, f"{EXPERT}{name}_proj.bias", Span(5, 11, 32))
    read_bytes, all_bytes = assert_cut(source, f"{EXPERT}down_proj.weight", Span.all_of(64), Span(5, 11, 32))
    assert read_bytes == (all_bytes if in_mxfp4 else all_bytes * 11 // 32)  # in MXFP4 that is one block
    assert_cut(source, f"{LAYER}self_attn.o_proj.weight", Span.all_of(64), Span(16, 32, 96))


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q4_1", "Q8_0", "Q5_0", "IQ4_NL", "MXFP4"])
def test_whole_blocks_of_gguf_are_read_and_cut(tmp_path, kind):
    quantisation = QUANTISATIONS[kind]
    blocks = 16 * 96 // quantisation.block
    random = torch.Generator().manual_seed(3)
    raw = torch.randint(0, 60, (blocks * quantisation.block_bytes,), dtype=torch.uint8, generator=random)
    tensors = {"blk.0.ffn_down.weight": (kind, [16, 96], raw.numpy().tobytes())}
    source = GgufWeights.open(write(tmp_path, tensors))
    name = f"{LAYER}mlp.down_proj.weight"
    covering = 1 if quantisation.block == 1 else 2
    read_bytes, all_bytes = assert_cut(source, name, Span.all_of(16), Span(30, 40, 96))
    assert read_bytes == (all_bytes * 40 // 96 if covering == 1 else all_bytes)
    read_bytes, _ = assert_cut(source, name, Span(3, 4, 16), Span(32, 33, 96))
    assert read_bytes == (all_bytes * 4 * 33 // (16 * 96) if covering == 1 else all_bytes * 4 * 2 // (16 * 3))


def test_heads_of_gguf_are_put_into_order_as_all_of_them_are(tmp_path):
    make_checkpoint(tmp_path / "model", "llama")
    write_model(tmp_path / "model.gguf", tmp_path / "model", "llama")
    source = open_weights(open_gguf(tmp_path / "model.gguf", tmp_path / "cache", lambda *_: None))
    assert_cut(source, f"{LAYER}self_attn.q_proj.weight", Span(16, 24, 48), Span.all_of(48))
    assert_cut(source, f"{LAYER}self_attn.k_proj.weight", Span(8, 8, 16), Span.all_of(48))


def test_experts_of_gguf_are_cut(tmp_path):
    architecture, make = KINDS["qwen3_moe"]
    save_checkpoint(tmp_path / "model", make())
    write_model(tmp_path / "model.gguf", tmp_path / "model", architecture)
    source = open_weights(open_gguf(tmp_path / "model.gguf", tmp_path / "cache", lambda *_: None))
    assert_cut(source, f"{EXPERT}down_proj.weight", Span.all_of(48), Span(7, 9, 24))
    assert_cut(source, f"{EXPERT}up_proj.weight", Span(7, 9, 24), Span.all_of(48))


def test_a_tensor_of_another_shape_or_type_is_refused_by_name(tmp_path):
    make_checkpoint(tmp_path, "llama")
    source = open_weights(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"up_proj.weight has shape \[80, 48\], and config.json asks for \[80, 64\]"
    ):
        cut(source, f"{LAYER}mlp.up_proj.weight", Span(0, 1, 80), Span.all_of(64))
    with pytest.raises(CheckpointError, match=r"tensor model.none of shape \[4\] is missing"):
        cut(source, "model.none", Span(0, 1, 4), None)
    save_file({"model.norm.weight": torch.zeros(4, dtype=torch.int32)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"has type torch\.int32, which is not computed here"):
        cut(open_weights(tmp_path), "model.norm.weight", Span(0, 1, 4), None)


def test_shares_meet_and_differ_by_one_at_most():
    for whole in range(1, 30):
        for size in range(1, 9):
            shares = [Span.share_of(whole, index, size) for index in range(size)]
            assert [place for share in shares for place in share.places] == list(range(whole))
            assert max(share.count for share in shares) - min(share.count for share in shares) <= 1


def test_rows_that_lie_in_one_tensor_are_its_parts_and_all_of_it_where_nothing_is_cut():
    q, k = Span(2, 2, 6), Span(1, 1, 2)
    assert parts_of(["q", "k", "v"], [q, k, k]) == [("q", q), ("k", k), ("v", k)]
    assert parts_of(["qkv"], [q, k, k]) == [("qkv", Span(2, 2, 10)), ("qkv", Span(7, 1, 10)), ("qkv", Span(9, 1, 10))]
    assert parts_of(["qkv"], [Span.all_of(6), Span.all_of(2), Span.all_of(2)]) == [("qkv", 10)]
    assert parts_of(["one"], [Span.all_of(6)]) == [("one", 6)]
