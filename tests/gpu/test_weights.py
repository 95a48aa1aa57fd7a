"""Weights in safetensors: tied and untied heads, shards, and what is said about damaged files."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from gpu.torch_runner import TorchRunner
from gpu.weights import open_weights
from protocol.errors import CheckpointError
from protocol.ids import EngineIndex, Epoch
from protocol.spec import EngineSpec
from tests.helpers.runner_conformance import Driver, params
from tests.helpers.tiny_checkpoints import VOCAB_SIZE, make_checkpoint

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def outputs(checkpoint) -> list[int]:
    spec = EngineSpec(
        EngineIndex(0), Epoch(1), "", {}, str(checkpoint), device="cpu", threads=1, num_gpu_blocks_override=8
    )
    progress: list[float] = []
    driver = Driver(TorchRunner.load(spec, progress.append))
    assert progress == sorted(progress)
    assert progress[-1] == 1.0
    return driver.run(driver.admit(0, [5, 6, 7, 8], params(12)))[0]


def refusal(checkpoint) -> str:
    with pytest.raises(CheckpointError) as caught:
        outputs(checkpoint)
    return caught.value.message


def rewrite(checkpoint, drop=(), tie=None, **tensors) -> None:
    """Change tensors of model.safetensors and tie_word_embeddings of config.json ("absent" removes it)."""
    path = checkpoint / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(path).items() if name not in drop}
    save_file(kept | tensors, path)
    config = json.loads((checkpoint / "config.json").read_text())
    config.pop("tie_word_embeddings", None)
    if tie != "absent":
        config["tie_word_embeddings"] = tie
    (checkpoint / "config.json").write_text(json.dumps(config))


@pytest.fixture
def checkpoint(tmp_path):
    make_checkpoint(tmp_path, "llama")
    return tmp_path


def test_a_tied_model_ignores_a_stored_head_and_does_without_the_embedding(checkpoint):
    tensors = load_file(checkpoint / "model.safetensors")
    rewrite(checkpoint, drop=[HEAD], tie=True)
    tied = outputs(checkpoint)
    rewrite(checkpoint, tie=True, **{HEAD: tensors[HEAD]})
    assert outputs(checkpoint) == tied
    rewrite(checkpoint, drop=[EMBEDDING], tie=True, **{HEAD: tensors[EMBEDDING]})
    assert outputs(checkpoint) == tied


def test_without_a_word_about_tying_the_head_is_used_if_it_is_there(checkpoint):
    untied = outputs(checkpoint)
    rewrite(checkpoint, tie="absent")
    assert outputs(checkpoint) == untied
    rewrite(checkpoint, drop=[HEAD], tie="absent")
    implied = outputs(checkpoint)
    rewrite(checkpoint, tie=True)
    assert outputs(checkpoint) == implied


def test_an_untied_model_without_a_head_or_embedding_is_refused(checkpoint):
    tensors = load_file(checkpoint / "model.safetensors")
    rewrite(checkpoint, drop=[HEAD], tie=False)
    assert f"tensor lm_head.weight of shape [{VOCAB_SIZE}, 48] is missing in model.safetensors" in refusal(checkpoint)
    rewrite(checkpoint, drop=[EMBEDDING], tie=False, **{HEAD: tensors[HEAD]})
    assert EMBEDDING in refusal(checkpoint)


def test_tensors_that_the_model_does_not_know_are_ignored(checkpoint):
    plain = outputs(checkpoint)
    rewrite(checkpoint, tie=False, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)})
    assert outputs(checkpoint) == plain


def test_half_precision_files_are_converted(checkpoint):
    tensors = {name: t.bfloat16() for name, t in load_file(checkpoint / "model.safetensors").items()}
    save_file({name: t.float() for name, t in tensors.items()}, checkpoint / "model.safetensors")
    widened = outputs(checkpoint)
    save_file(tensors, checkpoint / "model.safetensors")
    assert outputs(checkpoint) == widened


def test_shards_give_what_the_single_file_gives(checkpoint, tmp_path_factory):
    sharded = tmp_path_factory.mktemp("sharded")
    make_checkpoint(sharded, "llama", shard_size="100KB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    assert outputs(sharded) == outputs(checkpoint)


def test_faults_of_shards_name_the_file(tmp_path):
    make_checkpoint(tmp_path, "llama", shard_size="100KB")
    index = tmp_path / "model.safetensors.index.json"
    whole = json.loads(index.read_text())
    first, last = (sorted(set(whole["weight_map"].values()))[i] for i in (0, -1))
    moved = {name: last if shard == first else shard for name, shard in whole["weight_map"].items()}
    index.write_text(json.dumps({"weight_map": moved}))
    assert f"{last} lacks tensor" in refusal(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "../model.safetensors"}}))
    assert "'../model.safetensors', which is no file beside it" in refusal(tmp_path)
    index.write_text("{}")
    assert "is no index of shards" in refusal(tmp_path)
    index.write_text(json.dumps(whole))
    (tmp_path / first).unlink()
    assert f"names {first}, and that file is missing" in refusal(tmp_path)


def test_a_truncated_or_foreign_file_is_refused(checkpoint):
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "model.safetensors is no whole safetensors file" in refusal(checkpoint)
    path.write_bytes(b"<html>not found</html>")
    assert "model.safetensors is no whole safetensors file" in refusal(checkpoint)
    path.unlink()
    assert "holds no weights" in refusal(checkpoint)


def test_wrong_shapes_and_types_name_tensor_and_expectation(checkpoint):
    name = "model.layers.1.mlp.up_proj.weight"
    rewrite(checkpoint, tie=False, **{name: torch.zeros(80, 47)})
    assert f"tensor {name} has shape [80, 47], and config.json asks for [80, 48]" in refusal(checkpoint)
    rewrite(checkpoint, tie=False, **{name: torch.zeros(80, 48, dtype=torch.int8)})
    assert f"tensor {name} has type torch.int8" in refusal(checkpoint)
    rewrite(checkpoint, drop=[name], tie=False)
    assert f"tensor {name} of shape [80, 48] is missing" in refusal(checkpoint)


def test_a_source_knows_which_tensors_it_has(checkpoint):
    source = open_weights(checkpoint)
    assert HEAD in source
    assert "nothing" not in source
