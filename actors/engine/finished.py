"""What has ended lately, so that an output handler that lost a frame can still have the end of a request."""

from __future__ import annotations

from collections import OrderedDict
from typing import final

from actors.engine.sequence import Sequence
from protocol.ids import ClientIndex, RequestId

MAX_SEQUENCES = 1024
MAX_WEIGHT = 4_000_000
"""Token ids, log-probabilities and numbers of embeddings kept in all."""


@final
class FinishedSequences:
    """The newest finished sequences, bounded in number and in what they hold."""

    def __init__(self, max_sequences: int = MAX_SEQUENCES, max_weight: int = MAX_WEIGHT) -> None:
        self.max_sequences = max_sequences
        self.max_weight = max_weight
        self._sequences: OrderedDict[RequestId, Sequence] = OrderedDict()
        self._weight = 0

    def __len__(self) -> int:
        return len(self._sequences)

    def get(self, request_id: RequestId) -> Sequence | None:
        return self._sequences.get(request_id)

    def remember(self, sequence: Sequence) -> None:
        """Keep this one; drop the oldest while there is too much (always keeping this one)."""
        self.forget(sequence.request_id)
        self._sequences[sequence.request_id] = sequence
        self._weight += _weight_of(sequence)
        while len(self._sequences) > self.max_sequences or (self._weight > self.max_weight and len(self) > 1):
            self.forget(next(iter(self._sequences)))

    def forget(self, request_id: RequestId) -> None:
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self._weight -= _weight_of(sequence)

    def forget_client(self, client_index: ClientIndex) -> None:
        for request_id in [s.request_id for s in self._sequences.values() if s.client_index == client_index]:
            self.forget(request_id)

    def __repr__(self) -> str:
        return f"<FinishedSequences {len(self)} of at most {self.max_sequences}, weight {self._weight}>"


def _weight_of(sequence: Sequence) -> int:
    params = sequence.params
    weight = sequence.num_tokens + len(sequence.embedding or b"") // 4
    if sequence.logprobs is not None:
        weight += len(sequence.logprobs) * (1 + (params.logprobs or 0))
    if sequence.prompt_logprobs is not None:
        weight += len(sequence.prompt_logprobs) * (1 + (params.prompt_logprobs or 0))
    return weight
