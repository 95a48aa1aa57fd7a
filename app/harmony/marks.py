"""The ids of Harmony's control tokens. Used by app/harmony."""

from __future__ import annotations

from attrs import frozen
from openai_harmony import HarmonyEncoding

from app.dialects import harmony
from app.tokenizer import Tokenizer
from protocol.errors import CheckpointError


@frozen
class Marks:
    start: int
    channel: int
    constrain: int
    message: int
    end: int
    call: int
    returned: int

    @property
    def ends(self) -> tuple[int, int, int]:
        """Each of which ends a message."""
        return self.end, self.call, self.returned

    @property
    def all(self) -> frozenset[int]:
        return frozenset((self.start, self.channel, self.constrain, self.message, *self.ends))


def marks_of(encoding: HarmonyEncoding, tokenizer: Tokenizer) -> Marks:
    """Raises CheckpointError if they are other tokens for the checkpoint than for the library."""
    ids = []
    for mark in harmony.MARKS:
        [token_id] = encoding.encode(mark, allowed_special={mark})
        if tokenizer.special_tokens.get(mark) != token_id:
            raise CheckpointError(f"its control token {mark} is {tokenizer.special_tokens.get(mark)}, not {token_id}")
        ids.append(token_id)
    return Marks(*ids)
