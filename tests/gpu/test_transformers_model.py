"""Models that are computed with transformers' own code, against transformers with its own attention; and refusals."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from gpu.batch import make_batch
from gpu.kv_pool import KvPool, KvPoolSize
from gpu.model_shape import ModelShape
from gpu.models.transformers_attention import PagedAttention
from gpu.models.transformers_model import TransformersModel
from gpu.torch_runner import TorchRunner
from protocol.errors import CheckpointError
from protocol.ids import EngineIndex, Epoch, Slot
from protocol.messages import TokenLogprobs
from protocol.spec import EngineSpec
from protocol.step import Row
from tests.helpers.foreign_checkpoints import SERVED, make_foreign_checkpoint
from tests.helpers.runner_conformance import Driver, check_runner, params
from tests.helpers.tiny_checkpoints import VOCAB_SIZE, make_checkpoint


def load(checkpoint: Path, **changes: object) -> TorchRunner:
    sizes = {"block_size": 4, "num_gpu_blocks_override": 120, "device": "cpu", "threads": 1} | changes
    spec = EngineSpec(EngineIndex(0), Epoch(1), "", {}, str(checkpoint), **sizes)
    return TorchRunner.load(spec, lambda progress: None)


def distribution(logprobs: TokenLogprobs) -> torch.Tensor:
    found = torch.empty(VOCAB_SIZE)
    found[logprobs.token_ids[1:]] = torch.tensor(logprobs.logprobs[1:])
    return found


@pytest.mark.parametrize("kind", SERVED)
def test_logits_equal_transformers_in_chunks_and_mixed_rows(tmp_path, kind):
    model = make_foreign_checkpoint(tmp_path, kind)
    driver = Driver(load(tmp_path))
    wish = params(6, logprobs=VOCAB_SIZE, prompt_logprobs=VOCAB_SIZE)
    prompts = [[(7 * i * i + 3 * i + length) % VOCAB_SIZE for i in range(length)] for length in (2, 16, 17, 40)]
    sequences = [driver.admit(slot, prompt, wish) for slot, prompt in enumerate(prompts)]
    driver.run(*sequences, chunk=7)
    for sequence in sequences:
        with torch.inference_mode():
            expected = model(torch.tensor([sequence.tokens[:-1]])).logits[0].log_softmax(dim=-1)
        ours = sequence.prompt_logprobs + [sampled.logprobs for sampled in sequence.sampled]
        torch.testing.assert_close(torch.stack([distribution(row) for row in ours]), expected, atol=1e-4, rtol=1e-4)


def test_runner_conforms(tmp_path):
    make_foreign_checkpoint(tmp_path, "gpt_neox")
    check_runner(lambda: load(tmp_path))


def test_a_variant_that_the_decoder_lacks_is_computed_with_transformers(tmp_path):
    make_checkpoint(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    driver = Driver(load(tmp_path))
    sequence = driver.admit(0, list(range(9)), params(3))
    driver.run(sequence)
    assert len(sequence.output) == 3


def refusal(checkpoint: Path, **changes: object) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(checkpoint, **changes)
    return caught.value.message


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("bert", "['BertForMaskedLM'] is no causal language model"),
        ("bloom", "BloomForCausalLM takes no positions"),
        ("falcon", "does not let its attention be replaced"),
        ("falcon_h1", "FalconH1ForCausalLM keeps state beside keys and values"),
        ("gpt_oss", "GptOssAttention attends with s_aux"),
        ("phimoe", "it is served with --max-model-len 64 and less"),
    ],
)
def test_what_would_be_computed_wrong_is_refused(tmp_path, kind, words):
    make_foreign_checkpoint(tmp_path, kind)
    assert words in refusal(tmp_path)


def test_longrope_is_served_up_to_its_original_length(tmp_path):
    make_foreign_checkpoint(tmp_path, "phimoe")
    assert load(tmp_path, max_model_len=64).facts.max_model_len == 64


def test_code_in_a_checkpoint_is_not_run(tmp_path):
    make_foreign_checkpoint(tmp_path, "gpt_neox")
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "mine.py").write_text("raise SystemExit('it was run')")
    assert "without running code from the checkpoint" in refusal(tmp_path)


def test_missing_tensors_and_missing_weights_are_named(tmp_path):
    model = make_foreign_checkpoint(tmp_path, "gpt_neox")
    whole = model.state_dict()
    whole.pop("gpt_neox.layers.1.mlp.dense_h_to_4h.weight")
    model.save_pretrained(tmp_path, state_dict=whole)
    assert "1 tensors are missing, gpt_neox.layers.1.mlp.dense_h_to_4h.weight first" in refusal(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert "model.safetensors" in refusal(tmp_path)


def test_without_the_extra_its_name_is_told(tmp_path, monkeypatch):
    make_foreign_checkpoint(tmp_path, "gpt_neox")
    monkeypatch.setitem(sys.modules, "transformers", None)
    message = refusal(tmp_path)
    assert "architectures ['GPTNeoXForCausalLM']" in message
    assert "extra 'transformers'" in message


def test_state_that_transformers_does_not_tell_of_is_found_when_loading(tmp_path):
    """A model that mixes in what it saw in its last step, as a recurrent one does."""
    make_foreign_checkpoint(tmp_path, "gpt_neox")
    runner = load(tmp_path)
    assert isinstance(runner._model, TransformersModel)
    kept = [torch.zeros(48)]

    def remember(module: torch.nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
        mixed = output + kept[0]
        kept[0] = output[0, -1]
        return mixed

    loaded = runner._model._model
    loaded.get_input_embeddings().register_forward_hook(remember)
    with torch.inference_mode(), pytest.raises(CheckpointError, match="gives other logits in chunks"):
        TransformersModel(loaded, torch.device("cpu"))


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_layers_smaller_than_the_pools_heads_share_it(softcap):
    """Layers of 1 and 2 KV heads, and values smaller than keys, in a pool for the largest."""
    generator = torch.Generator().manual_seed(7)
    shapes = (((6, 8), (2, 8), (2, 8)), ((3, 4), (1, 4), (1, 2)), ((6, 2), (2, 2), (2, 8)))
    layers = [[torch.randn((9, *shape), generator=generator) for shape in layer] for layer in shapes]
    attention = PagedAttention()
    attention.begin(None, None)
    expected = [attention(*layer, None, 0.3, softcap) for layer in layers]
    attention.end()
    shape = ModelShape(
        vocab_size=1,
        num_layers=3,
        num_kv_heads=2,
        head_dim=8,
        max_position_embeddings=16,
        windows=(None,) * 3,
        dtype=None,
    )
    pool = KvPool(KvPoolSize(4, 4, 16, 0), shape, torch.float32, torch.device("cpu"))
    for first, end in ((0, 5), (5, 6), (6, 9)):
        row = Row(Slot(0), first, list(range(first, end)), [2, 0, 1], False)
        attention.begin(make_batch([row], shape.windows, 4, torch.float32, torch.device("cpu")), pool)
        for layer, whole in zip(layers, expected, strict=True):
            found = attention(*(heads[first:end] for heads in layer), None, 0.3, softcap)
            torch.testing.assert_close(found, whole[first:end])
        attention.end()
