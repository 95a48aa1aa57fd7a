"""lm-evaluation-harness over completions: its log-likelihoods of the default model are transformers' own."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from app.checkpoints.default_model import FILE
from app.checkpoints.gguf_checkpoint import open_gguf
from app.settings import default_cache_directory
from gpu.weights import open_weights
from tests.clients.client_code import SECONDS, run_client
from tests.helpers.server import open_default_model

pytestmark = [pytest.mark.clients, pytest.mark.process, pytest.mark.model, pytest.mark.filterwarnings("ignore")]

QUESTION = "Question: What is the capital of France?\nAnswer:"
ITEMS = [
    (QUESTION, " Paris"),
    (QUESTION, " London"),
    ("Seven plus five is", " twelve, and nine plus four is thirteen."),
    ("The harbour master wrote: « le café est fermé »,", " and the whole crew — all of them — laughed 😀."),
]


@pytest.fixture(scope="module")
def checkpoint() -> Path:
    file = default_cache_directory() / "default" / FILE
    if not file.is_file():
        pytest.skip("the default model is not in the cache: any start of the server fetches it")
    return open_gguf(file, default_cache_directory(), lambda *_: None)


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> list[tuple[float, bool]]:
    """transformers, with the weights as we dequantise them: the sum of log-probabilities, and whether it is greedy."""
    model = LlamaForCausalLM(LlamaConfig(**json.loads((checkpoint / "config.json").read_text()))).eval()
    source = open_weights(checkpoint)
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    found: list[tuple[float, bool]] = []
    with torch.inference_mode():
        for name, parameter in model.named_parameters():
            source.read(name, parameter)
        for context, continuation in ITEMS:
            start = len(tokenizer.encode(context).ids)
            ids = torch.tensor(tokenizer.encode(context + continuation).ids)
            logits = model(ids[None, :-1]).logits[0, start - 1 :]
            wanted = ids[start:]
            logprobs = logits.log_softmax(dim=1)[torch.arange(len(wanted)), wanted]
            found.append((float(logprobs.sum()), bool((logits.argmax(dim=1) == wanted).all())))
    return found


async def test_log_likelihoods_and_greediness_are_transformers_own(checkpoint, expected):
    async with open_default_model("--max-model-len", "512") as server:

        def evaluate(tokenized: bool) -> tuple[list, list]:
            model = LocalCompletionsAPI(
                model="SmolLM2-135M-Instruct",
                base_url=f"{server.url}/v1/completions",
                tokenizer=str(checkpoint),
                tokenizer_backend="huggingface",
                tokenized_requests=tokenized,
                batch_size=2,
                max_length=512,
                timeout=SECONDS,
                max_retries=1,
            )
            asked = [Instance("loglikelihood", {}, item, index) for index, item in enumerate(ITEMS)]
            going_on = {"until": ["."], "max_gen_toks": 12, "temperature": 0}
            written = [Instance("generate_until", {}, ("The capital of France is", going_on), 0)]
            return (
                model.loglikelihood(asked, disable_tqdm=True),
                model.generate_until(written, disable_tqdm=True),
            )

        found, written = await run_client(partial(evaluate, True))
        from_texts = await run_client(partial(evaluate, False))
    assert from_texts == (found, written)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    assert [value for value, _ in found] == pytest.approx([value for value, _ in expected], rel=3e-4)
    assert found[0][0] > found[1][0]
    assert "Paris" in written[0]
