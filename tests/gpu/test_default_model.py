"""The default model, as it is served, against transformers with the same dequantised weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from app.checkpoints.default_model import FILE
from app.checkpoints.gguf_checkpoint import open_gguf
from app.settings import default_cache_directory
from gpu.load_model import load_model
from gpu.torch_runner import TorchRunner
from gpu.weights import open_weights
from protocol.ids import EngineIndex, Epoch, Slot
from protocol.pooling import Pooling, PoolingParams
from protocol.spec import EngineSpec
from protocol.step import Row
from tests.helpers.runner_conformance import Driver, params, vector_of

pytestmark = pytest.mark.model

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
QUESTIONS = [
    "What is the capital of France?",
    "Write a poem about the sea.",
    "Explain photosynthesis to a child.",
    "How do I sort a list in Python?",
    "What is 12 times 34?",
    "Name five fruits.",
    "Who wrote Hamlet?",
    "Translate 'good morning' into Spanish.",
    "Why is the sky blue?",
    "Give me a recipe for pancakes.",
    "What is a black hole?",
    "Summarise the story of Cinderella.",
    "List the planets of the solar system.",
    "How does a bicycle stay upright?",
    "What should I pack for a hike?",
    "Tell me a joke.",
    "What is the difference between TCP and UDP?",
    "Write a haiku about autumn.",
    "How many legs does a spider have?",
    "What is the meaning of the word 'ephemeral'?",
]
TOKENS = 64
PROSE = """The town lies where two rivers meet, and for most of its history the rivers were its roads. Barges brought
grain from the plains and took back salt, glass and iron. When the railway came in 1862, the merchants on the quay
laughed at it: a train could carry in a day what a single barge carried in a morning. Within twenty years the quay was
empty. The warehouses became workshops, then flats, and then, after the war, nothing at all for a while.

Today the old harbour is a park. Children swim where the barges turned, and on summer evenings people sit on the stone
steps that were cut for dockers. A small museum in the customs house explains how a lock works. You fill the chamber,
open the gate, and the boat rises by itself; no engine is needed, only patience and water. The director likes to say
that the whole town was built by people who knew how to wait.

Every spring the rivers rise. In most years they stop a hand's breadth below the lowest street. Twice in a century they
do not, and the marks on the wall of the church show how high the water stood. The newest mark is higher than the
others, and the engineers are now arguing whether to build a barrier upstream or to give the fields back to the river,
as they were four hundred years ago. Both would cost about the same. The fields would be prettier, the mayor says, but
nobody can photograph himself opening a field."""


@pytest.fixture(scope="module")
def checkpoint():
    file = default_cache_directory() / "default" / FILE
    if not file.is_file():
        pytest.skip(f"the default model is not in the cache: {file} (any start of the server fetches it)")
    return open_gguf(file, default_cache_directory(), lambda *_: None)


@pytest.fixture(scope="module")
def runner(checkpoint):
    spec = EngineSpec(
        EngineIndex(0), Epoch(1), "", {}, str(checkpoint), device="cpu", dtype="float32", threads=1, max_model_len=512
    )
    return TorchRunner.load(spec, lambda _: None)


def native_spec(checkpoint: Path, dtype: str = "auto") -> EngineSpec:
    """As it is served."""
    cache = str(default_cache_directory())
    return EngineSpec(
        EngineIndex(0), Epoch(1), "", {}, str(checkpoint), device="cpu", dtype=dtype, cache_directory=cache
    )


@pytest.fixture(scope="module")
def tokenizer(checkpoint):
    return Tokenizer.from_file(str(checkpoint / "tokenizer.json"))


@pytest.fixture(scope="module")
def reference(checkpoint):
    """transformers' model with the weights as we dequantise them (tests/gpu/test_gguf_weights holds those to gguf)."""
    model = LlamaForCausalLM(LlamaConfig(**json.loads((checkpoint / "config.json").read_text()))).eval()
    source = open_weights(checkpoint)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            source.read(name, parameter)
    return model


def prompt_ids(tokenizer: Tokenizer, question: str) -> list[int]:
    turns = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    return tokenizer.encode(turns, add_special_tokens=False).ids


def test_it_knows_the_capital_of_france(runner, tokenizer):
    driver = Driver(runner)
    sequence = driver.admit(0, prompt_ids(tokenizer, QUESTIONS[0]), params(8))
    driver.run(sequence)
    driver.free(sequence)
    assert tokenizer.decode(sequence.output, skip_special_tokens=False) == "The capital of France is Paris.<|im_end|>"


def test_greedy_tokens_and_logprobs_equal_transformers(runner, tokenizer, reference):
    driver = Driver(runner)
    sequences = [
        driver.admit(slot, prompt_ids(tokenizer, question), params(TOKENS, logprobs=3))
        for slot, question in enumerate(QUESTIONS)
    ]
    for sequence in sequences:  # in two chunks, so that a chunk meets cached blocks; then all decode together
        driver.step((sequence, 20))
        driver.step((sequence, len(sequence.prompt) - 20))
    driver.run(*sequences)
    for sequence in sequences:
        with torch.inference_mode():
            logits = reference(torch.tensor([sequence.tokens[:-1]])).logits[0, -TOKENS:]
        best = logits.topk(2, dim=1)
        gaps = (best.values[:, 0] - best.values[:, 1]).tolist()
        expected = logits.log_softmax(dim=1)
        for index, sampled in enumerate(sequence.sampled):
            assert sampled.token_id == best.indices[index, 0] or gaps[index] < 1e-3
            found = torch.tensor(sampled.logprobs.logprobs)
            torch.testing.assert_close(found, expected[index, sampled.logprobs.token_ids], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("dtype", "least_agreement", "most_divergence"), [("auto", 0.995, 1e-4), ("int8", 0.94, 0.006)]
)
def test_the_kernels_stay_close_to_float32(checkpoint, tokenizer, reference, dtype, least_agreement, most_divergence):
    model, _ = load_model(native_spec(checkpoint, dtype), lambda _: None)
    assert model.dtype == "q4_1"
    token_ids = tokenizer.encode(PROSE, add_special_tokens=False).ids
    assert len(token_ids) >= 300
    with torch.inference_mode():
        computed = model.compute([Row(Slot(0), 0, token_ids, list(range(len(token_ids) // 16 + 1)), True)])
        found = model.logits(computed.hidden).log_softmax(dim=1)
        expected = reference(torch.tensor([token_ids])).logits[0].log_softmax(dim=1)
    model.close()
    agreement = (found.argmax(dim=1) == expected.argmax(dim=1)).float().mean().item()
    divergence = (expected.exp() * (expected - found)).sum(dim=1).mean().item()
    assert agreement >= least_agreement
    assert divergence <= most_divergence


def test_the_kernels_know_the_capital_of_france_too(checkpoint, tokenizer):
    driver = Driver(TorchRunner.load(native_spec(checkpoint), lambda _: None))
    sequence = driver.admit(0, prompt_ids(tokenizer, QUESTIONS[0]), params(8))
    driver.run(sequence)
    assert tokenizer.decode(sequence.output, skip_special_tokens=False) == "The capital of France is Paris.<|im_end|>"


def test_embeddings_are_those_of_transformers(checkpoint, tokenizer, reference):
    runner = TorchRunner.load(native_spec(checkpoint), lambda _: None)
    driver = Driver(runner)
    prompts = [tokenizer.encode(text, add_special_tokens=False).ids for text in (PROSE, *QUESTIONS[:2])]
    states = []
    for token_ids in prompts:
        with torch.inference_mode():
            states.append(reference.model(torch.tensor([token_ids])).last_hidden_state[0].double())
    for kind in Pooling:
        sequences = [driver.admit_to_pool(i, ids, PoolingParams(kind)) for i, ids in enumerate(prompts)]
        for values, hidden in zip(driver.pool(*sequences, chunk=100), states, strict=True):
            by_hand = {Pooling.LAST: hidden[-1], Pooling.CLS: hidden[0], Pooling.MEAN: hidden.mean(dim=0)}[kind]
            found = torch.tensor(vector_of(values)).double()
            assert (found - by_hand / by_hand.norm()).norm() < 1e-2, kind
    runner.close()
