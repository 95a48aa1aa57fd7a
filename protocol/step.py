"""What the scheduler asks of the runner for one step, and what comes back. Ints and bytes only: no tensors, no torch.

The runner keeps, per slot, what a sequence needs for sampling (its parameters and all its token ids); the plan names
new and freed slots and, for each scheduled row, the tokens to compute. With several ranks this is what is broadcast.
"""

from __future__ import annotations

import msgspec

from protocol.ids import RequestId, Slot
from protocol.lora import NO_LORA, LoraId
from protocol.messages import TokenLogprobs
from protocol.pooling import PoolingParams
from protocol.sampling import SamplingParams

PENDING = -1
"""In a row's token_ids, as the last one: the token that the plan right before this one samples for the same slot.

So a step can be planned while the one before it runs. If that one fails to sample a token for the slot, its row here is
void: it must do no harm, and its result is ignored."""


class NewSequence(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A sequence that takes a slot: at its first step, or before that once its blocks are loaded, or when it resumes
    after a preemption (then with its output)."""

    slot: Slot
    request_id: RequestId
    prompt_token_ids: list[int]
    output_token_ids: list[int]
    sampling_params: SamplingParams
    num_computed_tokens: int = 0
    """Of prompt and output, whose KV lies in the first blocks of its first row's block table; that row starts there.
    A number of whole blocks. Several slots may hold these blocks, and none of them writes to them."""
    lora_id: LoraId = NO_LORA
    """Of an adapter that the runner has."""
    pooling: PoolingParams | None = None
    """The row that computes the last prompt token gives a vector, and no row samples."""


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One sequence's share of a step: compute KV for `token_ids`, which stand at start, start+1, …

    If `sample` is set, the token after the last of them is chosen; its position (for the sampling noise) is
    start + len(token_ids). Rows that do not sample are chunks of a prompt.
    """

    slot: Slot
    start: int
    token_ids: list[int]
    """May end with PENDING."""
    block_table: list[int]
    """KV blocks in order; covers at least start + len(token_ids) positions."""
    sample: bool
    grammar_bitmask: bytes | None = None
    """ceil(vocab_size / 32) little-endian 32-bit words; bit t of the whole set: token t is allowed."""
    num_drafts: int = 0
    """So many of the last token_ids are guesses at what would be sampled. Only rows that sample and have no pending
    token have any. The runner samples after the last token before them, and after each of them for as long as it equals
    what was sampled in its place: the tokens are exactly those of as many steps without guesses. The KV of guesses that
    were wrong is computed over later."""
    draft_bitmasks: list[bytes] = []
    """With a grammar and drafts, one per draft: what grammar_bitmask would be behind it. Each draft is allowed where it
    stands."""

    def bitmask_behind(self, num_accepted: int) -> bytes | None:
        """What the grammar, if there is one, allows behind so many of the drafts."""
        if num_accepted == 0 or self.grammar_bitmask is None:
            return self.grammar_bitmask
        return self.draft_bitmasks[num_accepted - 1]


class KvCopy(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All bytes of one block, between the pool and the connector's window (protocol/kv)."""

    block: int
    frame: int


class StepPlan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Applied in this order: freed slots, saves, loads, new sequences, rows. A row's slot is new or was new in an
    earlier plan. A plan without rows has copies."""

    step: int
    freed_slots: list[Slot]
    new_sequences: list[NewSequence]
    rows: list[Row]
    saves: list[KvCopy] = []
    """From blocks to frames: what was computed by earlier plans, before this one writes anything."""
    loads: list[KvCopy] = []
    """From frames to blocks, before any row: with these begin sequences that are new in this plan, or in a later one if
    they have too many for one."""


class Sampled(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The result for one sampling row. With an error the row has no token, and its request ends with that error."""

    slot: Slot
    token_id: int
    """With drafts in the row: the token after the accepted ones."""
    logprobs: TokenLogprobs | None = None
    error: str | None = None
    num_accepted: int = 0
    """So many of the row's drafts are what would have been sampled."""
    accepted_logprobs: list[TokenLogprobs] = []
    """One per accepted draft, if the request asked for them."""


class PromptLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """For a row whose request asked for prompt_logprobs: the prompt tokens at start + 1 … start + len(rows),
    that is, each computed prompt position predicts the next prompt token (the last one, which predicts the first
    output token, gives none)."""

    slot: Slot
    start: int
    rows: list[TokenLogprobs]


class Pooled(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """For a row that computed the last token of a prompt that is to be pooled. With an error there are no values, and
    its request ends with that error."""

    slot: Slot
    values: bytes
    """[dimensions] little-endian float32."""
    error: str | None = None


class StepResult(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`sampled` is in the order of the plan's sampling rows. The runner has already appended each token to its slot,
    after the drafts that were accepted."""

    step: int
    sampled: list[Sampled]
    prompt_logprobs: list[PromptLogprobs] = []
    drafts: list[list[int]] = []
    """From a runner with a draft model: for each of `sampled`, in this order, guesses at what comes after that token.
    Any may be empty, and so may be the whole. The slot's next row has as many of them as the scheduler likes."""
    pooled: list[Pooled] = []
