"""One sampling row of a step while its tokens are chosen: one token, and one more behind each draft that was right.

A draft is right if it equals the token that is chosen in its place, with that place's own noise and history; so the
tokens are those of as many steps without drafts. Used by gpu/step_sampler.
"""

from __future__ import annotations

import attrs

from gpu.sampler import Choice, SamplingRow
from gpu.sequence_slot import SequenceSlot
from protocol.messages import TokenLogprobs
from protocol.step import Row, Sampled


@attrs.define(eq=False)
class Trial:
    """`logits_row` is that of the first choice; those of the places behind the row's drafts follow it."""

    row: Row
    slot: SequenceSlot
    logits_row: int
    chosen: list[tuple[Choice, TokenLogprobs | None]] = attrs.field(factory=list)

    @property
    def next_row(self) -> SamplingRow:
        """What the next choice is made from."""
        position = self.row.start + len(self.row.token_ids) - self.row.num_drafts + len(self.chosen)
        return SamplingRow(self.slot, position, self.row.bitmask_behind(len(self.chosen)), self.row.slot)

    @property
    def next_logits_row(self) -> int:
        return self.logits_row + len(self.chosen)

    @property
    def goes_on(self) -> bool:
        """The newest choice is the draft in its place, whose successor has been computed too."""
        num_chosen, num_drafts = len(self.chosen), self.row.num_drafts
        if num_chosen > num_drafts:
            return False
        choice, _ = self.chosen[-1]
        return choice.error is None and choice.token_id == self.row.token_ids[num_chosen - num_drafts - 1]

    def take(self, choice: Choice, logprobs: TokenLogprobs | None) -> None:
        """The choice for `next_row`; from here on the host, too, knows it as part of the sequence."""
        if choice.error is None:
            self.slot.output_token_ids.append(choice.token_id)
        self.chosen.append((choice, logprobs))

    def result(self) -> Sampled:
        *accepted, (choice, logprobs) = self.chosen
        return Sampled(
            self.row.slot,
            choice.token_id,
            logprobs,
            choice.error,
            len(accepted),
            [one for _, one in accepted if one is not None],
        )
