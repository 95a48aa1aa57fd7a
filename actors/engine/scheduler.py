"""Who computes what in the next step, and what came of the last one. The engine's main drives it; it is pure.

There are no prefill and decode phases: each sequence has a number of computed tokens that chases its number of tokens,
and a step gives each a share of one token budget. What a sequence cannot have now it gets in a later step, so a
request ends in one of four ways only: it is refused in `add`, it is aborted, `commit` finishes it, or what it needs is
not to be had (`expire`, `fail_adapter`, and what has to do with the connector). One that goes on elsewhere has no end.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Mapping
from typing import assert_never, final

from actors.engine.adapter_places import AdapterChange, AdapterPlaces
from actors.engine.admission import adapter_refusal_of, refusal_of
from actors.engine.block_hashes import BlockHashes
from actors.engine.blocks import BlockPool
from actors.engine.chunk_budget import ChunkBudget
from actors.engine.deadlines import Deadlines
from actors.engine.draft import StepDraft
from actors.engine.engine_counters import EngineCounters
from actors.engine.finish import Finish, finish_after_token
from actors.engine.finished import FinishedSequences
from actors.engine.hold import Hold
from actors.engine.kv_exports import NO_TICKET, Export
from actors.engine.kv_finds import Find
from actors.engine.kv_side import KvSide, must_load
from actors.engine.progress import take_result
from actors.engine.proposer import Proposer
from actors.engine.residents import Residents
from actors.engine.scheduler_config import SchedulerConfig
from actors.engine.sequence import Constraint, Sequence, SequenceStatus
from actors.engine.shares import MOST_JUMPING, admit_waiting, extend_running, guess_ahead, load_more
from actors.engine.waiting import WaitingQueue
from protocol.engine_stats import EngineStats
from protocol.ids import ClientIndex, Epoch, RequestId
from protocol.kv import KvCounts, KvExported, KvFound, KvOutput, KvResetDone, KvRoom
from protocol.lora import NO_LORA, LoraId
from protocol.messages import EngineCoreOutput, EngineCoreRequest, FinishReason
from protocol.step import Pooled, Row, Sampled, StepPlan, StepResult

MAX_IN_FLIGHT = 2
"""Plans that are not committed: one that the runner runs, and one that it goes on with at once."""

Addressed = tuple[ClientIndex, EngineCoreOutput]
"""An output and the client that it is for."""

ASKED_TIMES = 2
"""The connector is asked for so many times as many sequences as may run."""
EXPORTED_ENDS = (FinishReason.STOP, FinishReason.LENGTH)
"""Ends of requests whose KV is of use to others."""


@final
class Scheduler:
    """Owns every sequence of the engine, the block pool and the slots.

    Each plan of `schedule` is committed, in their order, and the next one may be planned before the last one is
    committed: it then has rows whose token is yet to be sampled. `add`, `abort` and `resync` may come at any time. What
    is freed while steps are in flight is reused by the next plan at the earliest, which the runner applies after them.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        proposer: Proposer | None = None,
        epoch: Epoch = Epoch(0),  # noqa: B008
    ) -> None:
        """With a proposer steps have guesses, and cannot be planned before the tokens of the step before are known.
        `epoch` is the engine's, for its connector."""
        self.config = config
        self._proposer = proposer
        self._pool = BlockPool(config.num_blocks, config.block_size)
        self.adapters = AdapterPlaces(config.max_loras)
        """actors/engine/adapter_loader.py tells it what has come."""
        self._adapter_changes: list[AdapterChange] = []
        self.kv = KvSide(epoch, self._pool, config.kv_seconds)
        """actors/engine/kv_link.py brings the connector, and carries what is said."""
        self._running = Residents(self._pool, config.max_num_seqs, config.policy, self.adapters, self.kv)
        self._live: dict[RequestId, Sequence] = {}
        self._waiting = WaitingQueue(config.policy)
        self._finished = FinishedSequences()
        self._deadlines = Deadlines()
        self._chunk_budget = ChunkBudget(config.max_num_batched_tokens)
        self._in_flight: deque[StepDraft] = deque()
        self.hold = Hold.NONE
        """What keeps it from planning steps. Set by actors/engine/operations.py."""
        self._num_added = 0
        self._counters = EngineCounters()

    # -------------------------------------------------------------------------------- what clients ask for

    def add(self, request: EngineCoreRequest, grammar: Constraint | None = None) -> list[Addressed]:
        """Take in a request, with its compiled grammar if it has one.

        Returns nothing, or the one output of a request that is refused (finish reason "error") or whose continuation
        is complete already. A client that uses the id of its own live request again loses that one with it.
        """
        known = self._live.get(request.request_id)
        if known is not None and known.client_index == request.client_index:
            return [self._fail(known, f"request id {request.request_id} was used twice at the same time")]
        refusal = "this request id is taken" if known is not None else self._refusal(request, grammar)
        if refusal is not None:
            return [(request.client_index, _error_output(request.request_id, refusal))]
        self._num_added += 1
        sequence = self._sequence_of(request, grammar)
        self._finished.forget(sequence.request_id)
        self._live[sequence.request_id] = sequence
        self._deadlines.note(sequence)
        self._waiting.push(sequence)
        finish = self._finish_of_continuation(sequence)
        if finish is not None:
            return _addressed(self._end(sequence, finish, sequence.num_continuation_tokens))
        if not self.kv.is_up and not self.kv.is_expected:
            return self._fail_lacking([sequence], "there is no connector")
        return []

    def abort(self, client_index: ClientIndex, request_ids: Iterable[RequestId]) -> None:
        """Drop these requests of that client without an output. Unknown and finished ids are ignored, but that nobody
        takes the tickets of these."""
        for request_id in request_ids:
            sequence = self._find(client_index, request_id)
            if sequence is not None and request_id in self._live:
                self._release(sequence)
            elif sequence is not None:
                self.kv.give_back(sequence)

    def expire(self, now: float) -> list[Addressed]:
        """End every request whose deadline has passed, in seconds of CLOCK_MONOTONIC; returns their last outputs."""
        late = self._deadlines.passed(self._live.values(), now)
        return self._end_at_once(late, Finish(FinishReason.ERROR, error="the request was not finished by its deadline"))

    def abort_client(self, client_index: ClientIndex) -> None:
        """The client is gone: drop all that is its."""
        self.abort(client_index, [s.request_id for s in self._live.values() if s.client_index == client_index])
        self._finished.forget_client(client_index)

    def abort_all(self, error: str) -> list[Addressed]:
        """End every request, of all clients, with finish reason "abort" and this sentence for the client."""
        return self._end_at_once(list(self._live.values()), Finish(FinishReason.ABORT, error=error))

    def reset_prefix_cache(self, *, preempts: bool, external: bool = False) -> bool:
        """No sequence finds what was computed before; what the connector has, only if it is not told to forget it too
        (`external`). With `preempts` those that run lose their blocks for that, to be computed again; without, nothing
        happens while any of them holds blocks. Whether it was done, but for what the connector has to do."""
        if preempts:
            for sequence in list(self._running):
                self._preempt(sequence)
        if self._pool.num_used:
            return False
        self._pool.forget()
        self.kv.reset(external=external)
        return True

    def resync(self, client_index: ClientIndex, offsets: Mapping[RequestId, int]) -> list[EngineCoreOutput]:
        """Say again, per request, every output token from this offset on, and the end if it has come.

        An id that is not (or no longer) known is answered with finish reason "error"; so is an offset that this
        engine cannot serve, which ends the request. A request that has nothing new gives no output.
        """
        answers = [self._say_again(client_index, request_id, offset) for request_id, offset in offsets.items()]
        return [answer for answer in answers if answer is not None]

    def fail_adapter(self, lora_id: LoraId, error: str) -> list[Addressed]:
        """What was coming does not come: end every request that waits for it; returns their last outputs."""
        self.adapters.fail(lora_id)
        lacking = [s for s in self._live.values() if s.lora_id == lora_id and s.is_live]
        return [self._fail(sequence, error) for sequence in lacking]

    def knows(self, client_index: ClientIndex, request_id: RequestId) -> bool:
        """Whether this client's request is live or remembered as finished."""
        return self._find(client_index, request_id) is not None

    # -------------------------------------------------------------------------------- the connector

    def attend_connector(self, now: float) -> list[Addressed]:
        """Ask it what is to be asked, and go on without it where it is late; returns last outputs. To be called before
        `schedule`, and at `kv.next_deadline` at the latest. `now` is in seconds of CLOCK_MONOTONIC."""
        if not self.kv.is_up:
            return self.lose_connector() if self.kv.give_up_expecting(now) else []
        outputs: list[Addressed] = []
        if self.kv.next_deadline <= now:
            late = self.kv.passed_finds(now)
            outputs += self._fail_lacking((find.sequence for find in late), "the connector did not answer in time")
        if self.kv.exports:
            outputs += [self._conclude(export, export.ticket) for export in self.kv.advance_exports(now)]
        if self.hold is not Hold.ALL and len(self._waiting):
            self._ask_connector(now)
        return outputs

    def hear_connector(self, message: KvOutput) -> list[Addressed]:
        """Take in what the connector says; returns the last outputs that come of it. Messages of other incarnations, of
        the engine or the connector, are not for here."""
        self.kv.heard()
        match message:
            case KvRoom(frames=frames):
                self.kv.grant(frames)
            case KvFound():
                find = self.kv.hear_found(message)
                if find is not None and message.error is not None:
                    return self._fail_lacking([find.sequence], message.error, find)
            case KvExported():
                export = self.kv.hear_exported(message)
                return [] if export is None else [self._conclude(export, export.ticket)]
            case KvResetDone(call_id=number):
                self.kv.hear_reset(number)
            case KvCounts():
                self.kv.counts = message
            case _:
                assert_never(message)
        return []

    def lose_connector(self) -> list[Addressed]:
        """It is gone, or does not come: everything goes on without it. Returns last outputs."""
        for sequence in self.kv.finds.loading:
            self._preempt(sequence)
        outputs = [self._conclude(export, NO_TICKET) for export in self.kv.disconnect()]
        return outputs + self._fail_lacking(list(self._waiting), "the connector is gone")

    def _ask_connector(self, now: float) -> None:
        """For those that may start next: who waits further behind would only keep others' frames from being reused."""
        waiting = self._waiting.begun() if self.hold is Hold.NEW else iter(self._waiting)
        num_ready = 0
        for sequence in itertools.islice(waiting, ASKED_TIMES * self.config.max_num_seqs):
            find = self.kv.finds.of(sequence)
            if find is None:
                find = self.kv.look_for(sequence, self._running.chain_of(sequence), now)
            num_ready += find.is_settled
            if num_ready >= self.config.max_num_seqs:
                return

    def _fail_lacking(self, sequences: Iterable[Sequence], why: str, find: Find | None = None) -> list[Addressed]:
        """End those of them that are not to be computed without what their tickets promised."""
        outputs: list[Addressed] = []
        for sequence in sequences:
            if must_load(sequence):
                num_wanted = len(chain := self._running.chain_of(sequence))
                num_had = len(self._pool.find(chain)) if find is None else find.first + len(find.frames)
                if num_had < num_wanted:
                    error = f"{num_had} of {num_wanted} KV blocks of the prompt could be loaded: {why}"
                    outputs.append(self._fail(sequence, error))
        return outputs

    # -------------------------------------------------------------------------------- the step

    def schedule(self, now: float) -> StepPlan | None:
        """The next step, or None if there is nothing to do, or nothing before the step in flight is committed. Never an
        empty plan. `now`, in seconds of CLOCK_MONOTONIC, is told of the sequences that start with it."""
        assert len(self._in_flight) < MAX_IN_FLIGHT, f"{self._in_flight[0]!r} is not committed yet"
        self._review_adapters()
        is_guessing = self._proposer is not None
        if not self.has_work or self.hold is Hold.ALL:
            return None
        if any(is_guessing or earlier.is_awaited for earlier in self._in_flight):
            return None
        config = self.config
        number = self._counters.num_steps + 1
        draft = StepDraft(
            number, config.max_num_batched_tokens, config.long_prefill_token_threshold, config.max_num_loads
        )
        draft.saves, draft.connection = self.kv.take_saves(), self.kv.connection
        extend_running(draft, self._running, self._waiting, self._chunk_budget)
        for sequence in draft.preempted:
            self._put_back(sequence)
        admit_waiting(draft, self._running, self._waiting, begun_only=self.hold is Hold.NEW)
        if self.kv.finds.num_loading and (draft.counts or not self._in_flight):
            load_more(draft, self._running)
        for sequence in draft.admitted:
            if sequence.scheduled_at is None:
                sequence.scheduled_at = now
        foresees = config.jumps_ahead and len(draft.counts) <= MOST_JUMPING
        foresees = foresees and any(sequence.grammar is not None for sequence in draft.counts)
        if foresees or self._proposer is not None:
            guess_ahead(draft, self._running, self._proposer, foresees=foresees)
        if not draft.counts and (self._in_flight or not (draft.saves or draft.loads)):
            # Copies alone are worth a step only while there is none: what is pending has to come from the one before.
            self.kv.put_back(draft.saves)
            assert self._in_flight or self._has_to_wait(), f"no progress with {self!r}"
            return None
        self._counters.num_steps += 1
        self._in_flight.append(draft)
        return draft.as_plan(self._running.take_freed_slots())

    def commit(self, plan: StepPlan, result: StepResult, seconds: float = 0.0) -> list[Addressed]:
        """Take in the result of the oldest plan that is not committed yet; returns what clients get of it.

        `seconds` is how long the runner took for it, 0 if nobody has measured that.
        """
        assert self._in_flight, "there is no step to commit"
        draft = self._in_flight.popleft()
        assert plan.step == result.step == draft.number, f"step {draft.number} is due, not {plan.step}/{result.step}"
        if draft.connection == self.kv.connection and (draft.saves or draft.loading):
            self.kv.committed(draft.saves, draft.loading)
        if not plan.rows:
            return []
        if not draft.loads:  # which have nothing to do with what tokens cost
            self._chunk_budget.observe(draft.num_decodes + draft.num_foreseen, draft.num_prefill_tokens, seconds)
        if result.prompt_logprobs:
            sequences = dict(zip((row.slot for row in plan.rows), draft.counts, strict=True))
            for chunk in result.prompt_logprobs:
                sequence = sequences[chunk.slot]
                if sequence.is_live:
                    sequence.gather_prompt_logprobs(chunk, is_lost=sequence in draft.lost)
        self._counters.note_step(draft, plan, result)
        outputs: list[Addressed] = []
        sampled, drafts = iter(result.sampled), iter(result.drafts)
        pooled = {one.slot: one for one in result.pooled}
        for row, sequence in zip(plan.rows, draft.counts, strict=True):
            one = next(sampled, None) if row.sample else None
            if row.sample:
                sequence.drafts = next(drafts, [])
            assert not row.sample or (one is not None and one.slot == row.slot), "the result is not that of this plan"
            if sequence.is_live:  # else aborted while the step ran, or ended by the step before
                output = self._commit_row(sequence, row, one, sequence not in draft.lost, pooled.get(row.slot))
                if output is not None:
                    outputs.append(output)
        return outputs

    def _preempt(self, sequence: Sequence) -> None:
        """One that runs, outside of a step."""
        self._running.dismiss(sequence)
        sequence.status = SequenceStatus.PREEMPTED
        self._put_back(sequence)

    def _put_back(self, sequence: Sequence) -> None:
        """It was preempted: it waits, and what steps in flight compute for it is lost."""
        sequence.num_preemptions += 1
        self._counters.num_preemptions += 1
        self._waiting.push(sequence)
        for earlier in self._in_flight:
            earlier.lost.add(sequence)

    def take_adapter_changes(self) -> list[AdapterChange]:
        """What `schedule` has decided since the last call: to be done after the plans that it has made until now."""
        changes, self._adapter_changes = self._adapter_changes, []
        return changes

    def _review_adapters(self) -> None:
        if self.adapters.num_places and self.hold is not Hold.ALL:
            if self.hold is Hold.NEW:
                self._adapter_changes += self.adapters.review(self._waiting.begun(), held=self._waiting)
            else:
                self._adapter_changes += self.adapters.review(self._waiting)

    def _has_to_wait(self) -> bool:
        """Nobody could go on now: not those that are held, nor those that lack their adapter or wait for the connector,
        nor those that are over."""
        if self.hold and not self._num_that_run_again:
            return True
        if not len(self._running) and not len(self._waiting):
            return True
        return self._awaits_adapters() or any(not self.kv.is_settled(sequence) for sequence in self._waiting)

    def _awaits_adapters(self) -> bool:
        return any(not self.adapters.is_ready(sequence.lora_id) for sequence in self._waiting)

    # -------------------------------------------------------------------------------- what one can see

    @property
    def has_work(self) -> bool:
        return bool(self._live) or self.kv.has_saves

    @property
    def num_begun(self) -> int:
        """Live requests that have run, or run now, or wait for their tickets."""
        return self._num_that_run_again + len(self.kv.exports)

    @property
    def _num_that_run_again(self) -> int:
        return len(self._running) + sum(s.status is SequenceStatus.PREEMPTED for s in self._waiting)

    @property
    def request_ids(self) -> list[RequestId]:
        """Of all requests that have not ended, in the order of their arrival here."""
        return list(self._live)

    def stats(self, *, whole: bool = False) -> EngineStats:
        """What it has done, and where it stands. `whole`: with what is too long to be told with every output."""
        return self._counters.stats(self._running, len(self._waiting), self._pool, whole=whole)

    def __repr__(self) -> str:
        return f"<Scheduler {len(self._running)} running, {len(self._waiting)} waiting, {self._pool!r}>"

    # -------------------------------------------------------------------------------- results of a step

    def _commit_row(
        self, sequence: Sequence, row: Row, sampled: Sampled | None, keeps_kv: bool, pooled: Pooled | None
    ) -> Addressed | None:
        offset = sequence.num_output_tokens
        finish = take_result(sequence, row, sampled, keeps_kv, self._finish_after_token, pooled)
        outcome = sampled or pooled
        self._counters.note_prompt(sequence, outcome)
        if outcome is not None and outcome.error is not None:
            self._pool.retract(sequence.block_table)  # whatever broke this row may lie in them
            if sequence.block_hashes is not None:
                self.kv.retract(sequence.block_hashes.up_to(sequence.token_ids, sequence.num_tokens))
        elif sequence.num_computed_tokens >= (sequence.num_published_blocks + 1) * self._pool.block_size:
            self._running.publish_full_blocks(sequence)
        self._counters.num_generated_tokens += sequence.num_output_tokens - offset
        if finish is not None or (sampled is not None and self._hands_over_now(sequence)):
            return self._end(sequence, finish, offset)
        return None if sampled is None else (sequence.client_index, sequence.output_from(offset))

    def _hands_over_now(self, sequence: Sequence) -> bool:
        """Without a ticket all that it has would be computed again elsewhere: that is only better than having others
        wait for its place."""
        is_full = len(self._running) + len(self._waiting) > self.config.max_num_seqs
        return sequence.hands_over and (self.kv.gives_tickets or is_full)

    def _sequence_of(self, request: EngineCoreRequest, grammar: Constraint | None) -> Sequence:
        config = self.config
        max_tokens = request.sampling_params.max_tokens
        most = min(
            len(request.prompt_token_ids) + max_tokens,
            config.max_model_len,
            config.num_blocks * config.block_size + 1,  # `_finish_if_too_long`
        )
        lora_id = NO_LORA if request.lora is None else request.lora.lora_id
        caches = config.enable_prefix_caching
        hashes = BlockHashes(config.block_size, request.cache_salt, lora_id) if caches else None
        return Sequence(request, self._num_added, most, grammar, hashes)

    # -------------------------------------------------------------------------------- how a request ends

    def _refusal(self, request: EngineCoreRequest, grammar: Constraint | None) -> str | None:
        num_prompt_tokens = len(request.prompt_token_ids)
        if num_prompt_tokens == 0:
            return "the prompt has no tokens"
        most = self.config.max_model_len - (request.pooling is None)  # nothing follows what is pooled
        if num_prompt_tokens > most:
            return f"the prompt has {num_prompt_tokens} tokens, but at most {most} fit"
        assert (grammar is None) == (request.sampling_params.grammar is None), "the grammar was not compiled"
        if (refusal := adapter_refusal_of(request.lora, self.config.max_loras)) is not None:
            return refusal
        return refusal_of(request, self.config.vocab_size) or (None if grammar is None else grammar.error)

    def _finish_of_continuation(self, sequence: Sequence) -> Finish | None:
        """Judge a sequence that has computed nothing yet by the tokens that it came with."""
        grammar = sequence.grammar
        if sequence.num_continuation_tokens == 0:
            return self._finish_if_too_long(sequence)
        for token_id in sequence.request.continuation_token_ids[:-1]:
            if grammar is not None and not grammar.accept(token_id):
                return Finish(FinishReason.ERROR, error=grammar.error)
        return self._finish_after_token(sequence)

    def _finish_after_token(self, sequence: Sequence) -> Finish | None:
        return finish_after_token(sequence, self.config.max_model_len) or self._finish_if_too_long(sequence)

    def _finish_if_too_long(self, sequence: Sequence) -> Finish | None:
        """A sequence that the whole pool cannot hold ends here, so that scheduling never has to end one."""
        num_blocks = self._pool.blocks_for(sequence.num_tokens)
        if num_blocks <= self._pool.num_blocks:
            return None
        message = f"{sequence.num_tokens} tokens need {num_blocks} KV blocks, but there are {self._pool.num_blocks}"
        return Finish(FinishReason.ERROR, error=message)

    def _end(self, sequence: Sequence, finish: Finish | None, offset: int) -> Addressed | None:
        """End a sequence that has all its tokens, or (without a finish) all that it is to have here. None: its last
        output waits for a ticket."""
        kv = sequence.request.kv
        if finish is not None and (kv is None or not kv.exports or finish.reason not in EXPORTED_ENDS):
            return self._finish(sequence, finish, offset)
        if self.kv.export(sequence, finish, offset):
            self._let_go(sequence)
            sequence.status = SequenceStatus.LEAVING
            return None
        return self._conclude(Export(sequence, finish, offset, []), NO_TICKET)

    def _conclude(self, export: Export, ticket: bytes) -> Addressed:
        """Its last output, which may have waited until now."""
        sequence = export.sequence
        sequence.kv_ticket = ticket
        if export.finish is not None:
            return self._finish(sequence, export.finish, export.offset)
        self._release(sequence)
        self._finished.remember(sequence)
        return sequence.client_index, sequence.output_from(export.offset)

    def _end_at_once(self, sequences: list[Sequence], finish: Finish) -> list[Addressed]:
        """End these so; those that are over already have no ticket, and else what they would have had. Who was to go
        on elsewhere is not over."""
        outputs: list[Addressed] = []
        for sequence in sequences:
            export = self.kv.exports.drop(sequence)
            if export is None:
                outputs.append(self._finish(sequence, finish, sequence.num_output_tokens))
            elif export.finish is None:
                outputs.append(self._finish(sequence, finish, export.offset))
            else:
                outputs.append(self._conclude(export, NO_TICKET))
        return outputs

    def _fail(self, sequence: Sequence, error: str) -> Addressed:
        export = self.kv.exports.drop(sequence)  # which holds tokens back
        offset = sequence.num_output_tokens if export is None else export.offset
        return self._finish(sequence, Finish(FinishReason.ERROR, error=error), offset)

    def _finish(self, sequence: Sequence, finish: Finish, offset: int) -> Addressed:
        """End a sequence; returns its last output, with the tokens from `offset` on."""
        sequence.finish_reason, sequence.stop_reason, sequence.error = finish
        self._release(sequence)
        self._finished.remember(sequence)
        return sequence.client_index, sequence.output_from(offset)

    def _release(self, sequence: Sequence) -> None:
        """Take back all that a live sequence holds."""
        self._let_go(sequence)
        sequence.status = SequenceStatus.FINISHED
        del self._live[sequence.request_id]

    def _let_go(self, sequence: Sequence) -> None:
        sequence.grammar = None
        if sequence.status is SequenceStatus.RUNNING:
            self.kv.note_used(sequence)
            self._running.dismiss(sequence)
        elif sequence.status is SequenceStatus.LEAVING:
            self.kv.exports.drop(sequence)
        else:
            self._waiting.remove(sequence)
            self.kv.drop(sequence)

    def _find(self, client_index: ClientIndex, request_id: RequestId) -> Sequence | None:
        sequence = self._live.get(request_id) or self._finished.get(request_id)
        return sequence if sequence is not None and sequence.client_index == client_index else None

    def _say_again(self, client_index: ClientIndex, request_id: RequestId, offset: int) -> EngineCoreOutput | None:
        sequence = self._find(client_index, request_id)
        if sequence is None:
            return _error_output(request_id, "unknown request", max(0, offset))
        first = 0 if sequence.logprobs is None else sequence.num_continuation_tokens
        if not first <= offset <= sequence.num_output_tokens:
            error = f"output from token {offset} on is not known here, only {first} to {sequence.num_output_tokens}"
            if sequence.status is not SequenceStatus.FINISHED:
                self._fail(sequence, error)
            return _error_output(request_id, error, max(0, offset))
        if sequence.status is not SequenceStatus.FINISHED and offset == sequence.num_output_tokens:
            return None
        if (export := self.kv.exports.drop(sequence)) is not None:
            # Part of what it holds back is wanted now: then all, without a ticket.
            export.offset = offset
            return self._conclude(export, NO_TICKET)[1]
        return sequence.output_from(offset)


def _error_output(request_id: RequestId, error: str, offset: int = 0) -> EngineCoreOutput:
    return EngineCoreOutput(request_id, offset, [], finish_reason=FinishReason.ERROR, error=error)


def _addressed(output: Addressed | None) -> list[Addressed]:
    return [] if output is None else [output]
