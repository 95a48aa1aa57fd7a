"""What the runner remembers of the sequence in a slot: its tokens, and what its sampling parameters come down to.

Made when a plan brings a new sequence; read and grown by gpu/sampler and gpu/torch_runner.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from gpu.prompt_pooling import PromptPooling
from protocol.step import NewSequence


class SequenceSlot:
    """One sequence. The tensors exist only where its parameters need them, and may be rows of a batch's."""

    def __init__(self, new: NewSequence, vocab_size: int, device: torch.device) -> None:
        self.params = new.sampling_params
        self.lora_id = new.lora_id
        self._vocab_size = vocab_size
        self.pooling = None if new.pooling is None else PromptPooling(new.pooling, len(new.prompt_token_ids))
        """What becomes of the prompt, if it is not gone on with."""
        self.prompt_token_ids = new.prompt_token_ids
        self.output_token_ids = list(new.output_token_ids)
        self.bias = self._make_bias(vocab_size, device)
        """[vocab] float32: logit_bias, and -inf for what allowed_token_ids leaves out."""
        self.ending = self._computable({*self.params.eos_token_ids, *self.params.stop_token_ids})
        """Token ids that would end the sequence: forbidden below min_tokens."""
        self.num_output_tokens = len(self.output_token_ids)
        """With those that have been sampled and that the host does not know yet."""
        self.output_counts = self._make_output_counts(vocab_size, device)
        """[vocab] float32: how often each token was put out."""
        self.seen = self._make_seen(vocab_size, device)
        """[vocab] bool: in prompt or output."""

    @property
    def last_token_id(self) -> int:
        return self.output_token_ids[-1] if self.output_token_ids else self.prompt_token_ids[-1]

    @property
    def needs_history(self) -> bool:
        """Whether it takes the latest tokens to say what may come next."""
        return any(len(word) > 1 for word in self.params.bad_words_token_ids)

    def append(self, token_id: int) -> None:
        """The token is now part of the sequence, whoever chose it. What gpu/sampler chose, it takes in by itself."""
        self.output_token_ids.append(token_id)
        self.num_output_tokens += 1
        if self.output_counts is not None:
            self.output_counts[token_id] += 1
        if self.seen is not None:
            self.seen[token_id] = True

    def bad_next_tokens(self) -> list[int]:
        """Last tokens of those bad words whose other tokens were just put out."""
        bad = []
        for word in self.params.bad_words_token_ids:
            before = word[:-1]
            if not before or self.output_token_ids[-len(before) :] == before:
                bad.append(word[-1])
        return self._computable(bad)

    def _computable(self, token_ids: Iterable[int]) -> list[int]:
        """Those that have a logit. A tokeniser or generation_config may name ids that the model cannot put out, and
        those need no mask."""
        return [token_id for token_id in token_ids if 0 <= token_id < self._vocab_size]

    def _make_bias(self, vocab_size: int, device: torch.device) -> torch.Tensor | None:
        params = self.params
        if not params.logit_bias and params.allowed_token_ids is None:
            return None
        bias = torch.zeros(vocab_size)
        if params.allowed_token_ids is not None:
            bias.fill_(float("-inf"))
            bias[self._computable(params.allowed_token_ids)] = 0.0
        for token_id, value in params.logit_bias.items():
            bias[token_id] += value
        return bias.to(device)

    def _make_output_counts(self, vocab_size: int, device: torch.device) -> torch.Tensor | None:
        if self.params.presence_penalty == 0.0 and self.params.frequency_penalty == 0.0:
            return None
        output = torch.tensor(self.output_token_ids, dtype=torch.int64)
        return torch.bincount(output, minlength=vocab_size).to(device, torch.float32)

    def _make_seen(self, vocab_size: int, device: torch.device) -> torch.Tensor | None:
        if self.params.repetition_penalty == 1.0:
            return None
        seen = torch.zeros(vocab_size, dtype=torch.bool)
        seen[self.prompt_token_ids + self.output_token_ids] = True
        return seen.to(device)
