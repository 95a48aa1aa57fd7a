"""What the sampler asks of a device: few copies there, and no answer before the tokens are known. On torch's device
without memory, which computes shapes alone and refuses to tell the host a number."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.overrides import TorchFunctionMode

from gpu.last_tokens import LastTokens
from gpu.sampler import Sampler, SamplingRow
from gpu.sequence_slot import SequenceSlot
from protocol.ids import RequestId, Slot
from protocol.sampling import SamplingParams
from protocol.step import NewSequence
from tests.helpers.runner_conformance import params

DEVICE = torch.device("meta")
VOCAB = 64
WISHES = [
    params(),
    params(temperature=1.0, seed=3, logit_bias={5: 1.0}, bad_words_token_ids=[[7]]),
    params(temperature=0.5, top_k=10, top_p=0.9, repetition_penalty=1.2),
    params(presence_penalty=0.5),
    params(temperature=2.0, top_p=0.5, min_p=0.1, frequency_penalty=0.3, repetition_penalty=1.1),
    params(temperature=1.0, top_k=3, logit_bias={6: -1.0}),
]


class CopiesThere(TorchFunctionMode):
    """Counts the tensors that are brought from the host, and those that are made there of a list."""

    count = 0

    def __torch_function__(
        self, function: Callable, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        made = function(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.device == DEVICE:
            of_the_host = any(isinstance(one, torch.Tensor) and one.device.type == "cpu" for one in args)
            self.count += of_the_host or function in (torch.tensor, torch.as_tensor)
        return made


def row(wish: SamplingParams, index: int) -> SamplingRow:
    new = NewSequence(Slot(index), RequestId("r"), [1, 2, 3], [4], wish)
    mask = b"\xff" * (VOCAB // 8) if index % 2 else None
    return SamplingRow(SequenceSlot(new, VOCAB, DEVICE), 10, mask, Slot(index))


def num_copies(sampler: Sampler, rows: list[SamplingRow], last_tokens: LastTokens) -> int:
    logits = torch.empty(len(rows), VOCAB, device=DEVICE)
    with CopiesThere() as copies:
        sampler.choose(logits, rows).grow(last_tokens)
    return copies.count


def test_a_step_brings_one_tensor_to_the_device_and_a_new_batch_one_more():
    rows = [row(wish, index) for index, wish in enumerate(WISHES)]
    sampler, last_tokens = Sampler(DEVICE), LastTokens(len(rows), DEVICE)
    assert num_copies(sampler, rows, last_tokens) == 2
    assert num_copies(sampler, rows, last_tokens) == 1
    assert num_copies(sampler, rows[::-2], last_tokens) == 2
