"""The scheduler's shape of one request: its tokens, how many of them have KV, and what it holds while it runs."""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import NamedTuple, Protocol, final

from actors.engine.block_hashes import BlockHashes
from actors.engine.ngrams import NgramIndex
from protocol.ids import ClientIndex, RequestId, Slot
from protocol.lora import NO_LORA
from protocol.messages import EngineCoreOutput, EngineCoreRequest, FinishReason, TokenLogprobs
from protocol.pooling import Pooling
from protocol.sampling import SamplingParams
from protocol.step import PENDING, NewSequence, PromptLogprobs, Row


class SequenceStatus(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    """Was running, lost its blocks, waits to be computed again from its prompt and output."""
    LEAVING = "leaving"
    """Has all its tokens and holds nothing any more; its last output waits for a ticket."""
    FINISHED = "finished"
    """Also when aborted, then without a finish reason."""


class Foreseen(NamedTuple):
    """A token that is likely to come, and what is allowed after it, as protocol.step.Row.grammar_bitmask describes."""

    token_id: int
    bitmask: bytes


class Constraint(Protocol):
    """What limits the next token of one sequence; actors/engine/grammar.py has the real one."""

    @property
    def error(self) -> str | None:
        """Why this grammar cannot go on, for the client; None while it can."""

    @property
    def is_finished(self) -> bool:
        """Nothing may follow."""

    def accept(self, token_id: int) -> bool:
        """Move on by one token; False, with `error` set, if it is not allowed here."""

    def bitmask(self) -> bytes:
        """The allowed next tokens, as protocol.step.Row.grammar_bitmask describes."""

    def look_ahead(self, count: int) -> list[Foreseen]:
        """At most `count` tokens that must come next, or probably will. Each is allowed after those before it, and
        something may follow each."""


@final
class Sequence:
    """One request on its way. Only the scheduler changes it.

    `token_ids` is prompt and output together; output begins with the request's continuation. `num_computed_tokens` of
    them have KV in the blocks of `block_table`; the scheduler's work is to let it catch up with `num_tokens`. Plans in
    flight are ahead of both: when they are done, `num_planned_tokens` are computed and `num_pending_tokens` more are
    sampled. The first `num_published_blocks` of the blocks can be found by others. The table is replaced when it grows,
    never changed, since plans hold on to it.
    """

    __slots__ = (
        "arrival",
        "block_hashes",
        "block_table",
        "client_index",
        "drafts",
        "embedding",
        "ending_token_ids",
        "error",
        "finish_reason",
        "grammar",
        "is_prompt_counted",
        "kv_ticket",
        "logprobs",
        "lora_id",
        "max_num_tokens",
        "ngrams",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_pending_tokens",
        "num_planned_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_published_blocks",
        "params",
        "prompt_logprobs",
        "request",
        "request_id",
        "scheduled_at",
        "slot",
        "status",
        "stop_reason",
        "token_ids",
    )

    def __init__(
        self,
        request: EngineCoreRequest,
        arrival: int,
        max_num_tokens: int,
        grammar: Constraint | None = None,
        block_hashes: BlockHashes | None = None,
    ) -> None:
        """`arrival` counts the requests that the scheduler has taken in; it breaks ties of arrival_time. With
        `max_num_tokens` it certainly ends. Without `block_hashes` its blocks are neither found nor published."""
        self.request = request
        self.request_id: RequestId = request.request_id
        self.client_index: ClientIndex = request.client_index
        self.params: SamplingParams = request.sampling_params
        self.ending_token_ids = frozenset((*self.params.eos_token_ids, *self.params.stop_token_ids))
        self.lora_id = NO_LORA if request.lora is None else request.lora.lora_id
        self.arrival = arrival
        self.grammar = grammar
        self.block_hashes = block_hashes
        self.status = SequenceStatus.WAITING
        self.token_ids = [*request.prompt_token_ids, *request.continuation_token_ids]
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.max_num_tokens = max_num_tokens
        self.num_computed_tokens = 0
        self.num_planned_tokens = 0
        self.num_pending_tokens = 0
        self.num_cached_tokens = 0
        self.num_published_blocks = 0
        self.ngrams: NgramIndex | None = None
        self.drafts: list[int] = []
        """What the runner's draft model says comes after the last token; comes anew with each token."""
        self.slot: Slot | None = None
        self.block_table: list[int] = []
        self.logprobs: list[TokenLogprobs] | None = None if self.params.logprobs is None else []
        # An earlier incarnation delivered them with the first token of the continuation.
        wants_prompt = self.params.prompt_logprobs is not None and not request.continuation_token_ids
        self.prompt_logprobs: list[TokenLogprobs | None] | None = [None] if wants_prompt else None
        self.embedding: bytes | None = None
        """What the request asked for with `pooling`, once it is there."""
        self.kv_ticket: bytes | None = None
        """For whoever goes on with its KV, once it is over."""
        self.is_prompt_counted = False
        self.scheduled_at: float | None = None
        """When it first had a place in a step, in seconds of CLOCK_MONOTONIC."""
        self.num_preemptions = 0
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | None = None
        self.error: str | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_unplanned_tokens(self) -> int:
        """What the next plan may compute, including a token that the plan before it is yet to sample."""
        return len(self.token_ids) + self.num_pending_tokens - self.num_planned_tokens

    @property
    def is_about_to_end(self) -> bool:
        """It will have its last token when the plans in flight are done."""
        if self.num_pending_tokens == 0:
            return False
        return self.hands_over or len(self.token_ids) + self.num_pending_tokens >= self.max_num_tokens

    @property
    def num_continuation_tokens(self) -> int:
        return len(self.request.continuation_token_ids)

    @property
    def awaits_prompt_logprobs(self) -> bool:
        """What the prompt's positions predict has been asked for and is not known yet."""
        return self.prompt_logprobs is not None and len(self.prompt_logprobs) < self.num_prompt_tokens

    @property
    def needs_every_position(self) -> bool:
        """The KV alone is not enough: something is made of the hidden states of positions before the last one."""
        pooling = self.request.pooling
        return self.awaits_prompt_logprobs or (pooling is not None and pooling.pooling is not Pooling.LAST)

    @property
    def hands_over(self) -> bool:
        """It is to be continued elsewhere after its first token."""
        return self.request.kv is not None and self.request.kv.hands_over

    @property
    def is_live(self) -> bool:
        """It goes on, or would."""
        return self.status not in (SequenceStatus.FINISHED, SequenceStatus.LEAVING)

    def as_new(self) -> NewSequence:
        """What the runner has to know when the sequence takes its slot."""
        assert self.slot is not None
        return NewSequence(
            slot=self.slot,
            request_id=self.request_id,
            prompt_token_ids=self.request.prompt_token_ids,
            output_token_ids=self.token_ids[self.num_prompt_tokens :],
            sampling_params=self.params,
            num_computed_tokens=self.num_computed_tokens,
            pooling=self.request.pooling,
            lora_id=self.lora_id,
        )

    def plan_row(self, count: int, drafts: Collection[int] = (), bitmasks: Collection[bytes] = ()) -> Row:
        """A row with the next `count` tokens, which are planned from now on, and guesses at those after them; with a
        grammar, also what is allowed behind each."""
        assert self.slot is not None
        start = self.num_planned_tokens
        end = start + count
        token_ids = self.token_ids[start:end]
        if len(token_ids) < count:
            token_ids.append(PENDING)
        sample = end == len(self.token_ids) + self.num_pending_tokens and self.params.max_tokens > 0
        self.num_planned_tokens = end + len(drafts)
        if not sample:
            return Row(self.slot, start, token_ids, self.block_table, False)
        self.num_pending_tokens += 1
        bitmask = None if self.grammar is None else self.grammar.bitmask()
        token_ids += drafts
        return Row(self.slot, start, token_ids, self.block_table, True, bitmask, len(drafts), list(bitmasks))

    def append(self, token_id: int, logprobs: TokenLogprobs | None) -> None:
        """Take in a sampled token; with its log-probabilities if the request asked for them."""
        self.token_ids.append(token_id)
        if self.logprobs is not None:
            assert logprobs is not None, f"the runner gave no logprobs for {self!r}"
            self.logprobs.append(logprobs)

    def gather_prompt_logprobs(self, chunk: PromptLogprobs, *, is_lost: bool = False) -> None:
        """Take in the log-probabilities of one chunk of the prompt, as far as they are not known already. One whose KV
        `is_lost` may come after the sequence has begun anew: then it comes again, behind those before it."""
        if not self.awaits_prompt_logprobs:
            return  # computed again after a preemption
        assert self.prompt_logprobs is not None
        num_known = len(self.prompt_logprobs) - 1 - chunk.start
        assert num_known >= 0 or is_lost, f"prompt logprobs of {self!r} skip to {chunk.start}"
        if num_known >= 0:
            self.prompt_logprobs.extend(chunk.rows[num_known:])

    def begin_with(self, block_table: list[int], num_published: int, num_computed_tokens: int) -> None:
        """The KV of so many tokens is there, in the first of these blocks, of which others may find the first so many;
        all other tokens are to be computed, or `load_more`."""
        self.block_table = block_table
        self.num_published_blocks = num_published
        self.num_computed_tokens = self.num_planned_tokens = num_computed_tokens
        if self.awaits_prompt_logprobs:
            self.prompt_logprobs = [None]

    def load_more(self, num_tokens: int) -> None:
        """The KV of so many tokens more will be there before any row of it."""
        self.num_computed_tokens += num_tokens
        self.num_planned_tokens = self.num_computed_tokens

    def forget_computed(self) -> None:
        """The KV is gone. Tokens and log-probabilities that are still on their way remain welcome."""
        self.block_table = []
        self.num_published_blocks = 0
        self.num_computed_tokens = self.num_planned_tokens = 0

    def output_from(self, offset: int) -> EngineCoreOutput:
        """Every output token from `offset` on, and the end if it has come.

        Prompt log-probabilities, and how much of the prompt was cached, are part of the first output. `offset` is at
        least the length of the continuation if log-probabilities were asked for: those of the continuation are not
        known here.
        """
        first = self.num_continuation_tokens
        logprobs = None if self.logprobs is None else self.logprobs[offset - first :]
        return EngineCoreOutput(
            request_id=self.request_id,
            offset=offset,
            new_token_ids=self.token_ids[self.num_prompt_tokens + offset :],
            logprobs=logprobs,
            prompt_logprobs=self.prompt_logprobs if offset == first and not self.awaits_prompt_logprobs else None,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            error=self.error,
            num_cached_tokens=self.num_cached_tokens if offset == first else 0,
            # Again at the end: an output handler that began in between has missed the first one.
            scheduled_at=self.scheduled_at if offset == first or not self.is_live else None,
            num_preemptions=self.num_preemptions,
            embedding=self.embedding,
            kv_ticket=self.kv_ticket,
        )

    def __repr__(self) -> str:
        end = f" {self.finish_reason.value}" if self.finish_reason is not None else ""
        return (
            f"<Sequence {self.request_id} {self.status.value}{end}: {self.num_prompt_tokens}+{self.num_output_tokens} "
            f"tokens, {self.num_computed_tokens} computed, slot {self.slot}, blocks {self.block_table}>"
        )
