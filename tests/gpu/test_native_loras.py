"""Adapters on the CPU's kernels: right beside every kind of weight, and the same to the last bit in any company."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from gpu.load_model import load_model
from gpu.lora_checkpoint import read_adapter
from gpu.native_batch import ADAPTED_TOKENS, AdaptedRows
from gpu.native_loras import narrowest
from gpu.native_model import NativeModel
from gpu.torch_model import TorchModel
from gpu.torch_runner import TorchRunner
from protocol.lora import NO_LORA, LoraId
from tests.gpu.test_native_model import MIXED, ignore, prompt, row, spec
from tests.helpers.adapter_conformance import check_adapters
from tests.helpers.adapters import write_adapter
from tests.helpers.peft_adapters import EVERY, SOME, PeftOracle
from tests.helpers.wide_checkpoints import make_checkpoint, make_quantised_checkpoint

LORAS = {"max_loras": 2, "max_lora_rank": 20}
FIRST, SECOND = LoraId(1), LoraId(2)


def load(checkpoint, adapters=(), **changes):
    model, _ = load_model(spec(checkpoint, **LORAS | changes), ignore)
    with torch.inference_mode():
        for number, path in enumerate(adapters, 1):
            model.add_lora(LoraId(number), read_adapter(path, model.lora_modules, LORAS["max_lora_rank"]))
    return model


@torch.inference_mode()
def logits_of(model, token_ids, lora_id=NO_LORA):
    return model.logits(model.compute([row(0, token_ids)], [lora_id]).hidden).clone()


def differences(found, expected):
    return (found - expected).norm(dim=1) / expected.norm(dim=1)


@pytest.mark.parametrize("kind", ["llama_biases", "qwen2", "qwen3"])
def test_adapters_give_pefts_logits(kind, tmp_path):
    reference = make_checkpoint(tmp_path / "model", kind, torch.bfloat16)
    oracle = PeftOracle(reference, tmp_path / "adapters", first=EVERY, second=SOME)
    model = load(tmp_path / "model", [oracle.path("first"), oracle.path("second")])
    assert isinstance(model, NativeModel)
    for name, lora_id in ((None, NO_LORA), ("first", FIRST), ("second", SECOND)):
        error = differences(logits_of(model, prompt(150), lora_id), oracle.logits(name, prompt(150)))
        assert error.max() < 5e-3  # of the cache in float16
    model.close()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("mixed")
    make_quantised_checkpoint(directory, MIXED)
    return directory


@pytest.fixture(scope="module")
def adapters(checkpoint, tmp_path_factory):
    """One for every projection, and one of another rank that leaves some alone, the keys among them."""
    directory = tmp_path_factory.mktemp("adapters")
    modules = load_model(spec(checkpoint, **LORAS), ignore)[0].lora_modules
    shapes = {name: (module.rows, module.columns) for name, module in modules.items()}
    some = {name: shape for name, shape in shapes.items() if name.endswith(("q_proj", "v_proj", "down_proj"))}
    return [
        write_adapter(directory / "every", shapes, rank=16, lora_alpha=32),
        write_adapter(directory / "some", some, rank=LORAS["max_lora_rank"], seed=1, lora_alpha=200),
    ]


@pytest.fixture(scope="module")
def model(checkpoint, adapters):
    return load(checkpoint, adapters)


def test_adapters_beside_quantised_weights_give_what_float32_gives(checkpoint, adapters, model):
    exact = load(checkpoint, adapters, dtype="float32")
    assert isinstance(exact, TorchModel)
    for lora_id in (FIRST, SECOND):
        found, expected = logits_of(model, prompt(150), lora_id), logits_of(exact, prompt(150), lora_id)
        # Of the cache in float16; random weights attend sharply, so that tokens may flip.
        assert differences(found, expected).median() < 2e-3
        assert differences(logits_of(model, prompt(150)), expected).median() > 0.1


def test_without_an_adapter_nothing_changes_to_the_last_bit(checkpoint, model):
    plain, _ = load_model(spec(checkpoint), ignore)
    assert torch.equal(logits_of(model, prompt(70)), logits_of(plain, prompt(70)))


def test_an_adapter_that_was_removed_leaves_nothing(checkpoint, adapters, model):
    changing = load(checkpoint, adapters[:1])
    changing.remove_lora(FIRST)
    changing.add_lora(FIRST, read_adapter(adapters[1], changing.lora_modules, LORAS["max_lora_rank"]))
    assert torch.equal(logits_of(changing, prompt(40), FIRST), logits_of(model, prompt(40), SECOND))


def test_adapters_survive_longer_steps_and_a_new_cache(checkpoint, adapters, model):
    """Each of which has another program."""
    changing = load(checkpoint, adapters)
    expected = logits_of(changing, prompt(10), SECOND)
    logits_of(changing, prompt(200), SECOND)
    changing.release_kv()
    changing.restore_kv()
    assert torch.equal(logits_of(changing, prompt(10), SECOND), expected)


@settings(max_examples=25)
@given(data=st.data())
def test_logits_depend_on_no_chunking_no_company_and_no_thread(checkpoint, adapters, model, data):
    threads = data.draw(st.integers(1, 3))
    sequences = data.draw(
        st.lists(st.tuples(st.integers(1, 200), st.sampled_from([NO_LORA, FIRST, SECOND])), min_size=1, max_size=5)
    )
    crowd = load(checkpoint, adapters, threads=threads)
    prompts = [prompt(length, salt) for salt, (length, _) in enumerate(sequences)]
    tables = [list(range(20 * i, 20 * i + 20)) for i in range(len(sequences))]
    found = [[] for _ in sequences]
    done = [0] * len(sequences)
    while unfinished := [i for i, (length, _) in enumerate(sequences) if done[i] < length]:
        rows = []
        for i in unfinished:
            left = sequences[i][0] - done[i]
            count = data.draw(st.integers(1, left) | st.just(max(1, left - 3)) if left > 3 else st.just(1))
            rows.append(row(done[i], prompts[i][done[i] : done[i] + count], tables[i]))
        with torch.inference_mode():
            computed = crowd.compute(rows, [sequences[i][1] for i in unfinished])
            logits = crowd.logits(computed.hidden)
        for i, one, first in zip(unfinished, rows, computed.first_token, strict=True):
            found[i].append(logits[first : first + len(one.token_ids)].clone())
            done[i] += len(one.token_ids)
    crowd.close()
    for token_ids, (_, lora_id), parts in zip(prompts, sequences, found, strict=True):
        assert torch.equal(torch.cat(parts), logits_of(model, token_ids, lora_id))


def test_the_runner_keeps_adapters(checkpoint, adapters, tmp_path):
    shape = {"model.layers.1.mlp.gate_proj": (512, 256)}
    third = write_adapter(tmp_path, shape, rank=3)
    check_adapters(TorchRunner.load(spec(checkpoint, **LORAS, threads=2), ignore), [*adapters, third])


@pytest.mark.parametrize(("dtype", "kind"), [("bfloat16", "BF16"), ("float16", "F16"), ("float32", "F32")])
def test_matrices_are_kept_in_the_fewest_bytes_that_hold_them(dtype, kind):
    numbers = (torch.randn(5, 9) / 3).to(getattr(torch, dtype))
    found, raw = narrowest(numbers.float().numpy())
    assert found == kind
    assert torch.equal(torch.from_numpy(raw).view(getattr(torch, dtype)), numbers)


def test_what_16_bits_do_not_hold_is_left_alone():
    for number in (1e-9, 70000.0, 1 + 2**-12):
        assert narrowest(torch.tensor([[number, 2**-20]]).numpy())[0] == "F32"


def test_an_adapter_of_16_bits_gives_what_float32_gives(checkpoint, tmp_path):
    shapes = {"model.layers.0.self_attn.v_proj": (64, 256), "model.layers.1.mlp.down_proj": (256, 512)}
    exact = load(checkpoint, dtype="float32")
    for seed, dtype in enumerate((torch.bfloat16, torch.float16)):
        path = write_adapter(tmp_path / str(seed), shapes, rank=7, seed=seed, lora_alpha=224)
        tensors = load_file(path / "adapter_model.safetensors")
        save_file({name: one.to(dtype) for name, one in tensors.items()}, path / "adapter_model.safetensors")
        native = load(checkpoint, [path])
        with torch.inference_mode():
            exact.add_lora(LoraId(8 + seed), read_adapter(path, exact.lora_modules, 8))
        expected = logits_of(exact, prompt(100), LoraId(8 + seed))
        assert differences(logits_of(native, prompt(100), FIRST), expected).median() < 2e-3
        assert differences(logits_of(native, prompt(100)), expected).median() > 0.1
        native.close()


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 150)), max_size=12))
def test_adapted_tokens_come_in_few_stretches_of_bounded_length(rows):
    adapted, first = AdaptedRows(), 0
    expected = []
    for place, gap, count in rows:
        first += gap
        adapted.add(place, first, count)
        expected += [(place, token) for token in range(first, first + count)]
        first += count
    stretches = list(zip(*[iter(adapted.numbers)] * 3, strict=True))
    assert [(place, t) for place, begin, count in stretches for t in range(begin, begin + count)] == expected
    assert all(count <= ADAPTED_TOKENS for _, _, count in stretches)
    for (place, begin, count), (next_place, next_begin, _) in pairwise(stretches):
        assert count == ADAPTED_TOKENS or (place, begin + count) != (next_place, next_begin)
