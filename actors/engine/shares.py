"""The policy of a step: who gets which share of its token budget, and who loses its blocks for that.

Small decisions over a StepDraft, in the order in which the scheduler takes them: first those that run, then new ones.
"""

from __future__ import annotations

import itertools

from actors.engine.chunk_budget import ChunkBudget
from actors.engine.draft import StepDraft
from actors.engine.proposer import Proposer
from actors.engine.residents import Residents
from actors.engine.sequence import Sequence, SequenceStatus
from actors.engine.waiting import WaitingQueue
from protocol.step import KvCopy

MAX_FORESEEN = 16
"""Tokens that a grammar may add to one row."""
MOST_JUMPING = 2
"""Rows in a step whose grammars are asked what they foresee. Beside more rows a token costs about the same in this step
and in the next one: with the default model there was nothing to be gained from 4 rows on."""


def extend_running(draft: StepDraft, running: Residents, waiting: WaitingQueue, budget: ChunkBudget) -> None:
    """One token for whoever decodes, then to the prompts under way, the best rank first, what is left and what those
    that decode can be asked to wait for, `waiting` being those that want to start.

    Whoever has to make room for that is in `draft.preempted`, to be computed again from its prompt and output.
    """
    decoding: list[Sequence] = []
    prompts: list[Sequence] = []
    for sequence in running:
        num_tokens = sequence.num_unplanned_tokens
        if num_tokens > 1:
            prompts.append(sequence)
        elif num_tokens == 1 and not sequence.is_about_to_end:
            decoding.append(sequence)
    block_size = running.pool.block_size
    for sequence in decoding:
        # Most have room for it in a block of theirs.
        if draft.tokens_left > 0 and sequence.num_planned_tokens < len(sequence.block_table) * block_size:
            draft.take(sequence, 1)
        else:
            _extend(sequence, draft, running)
    if draft.counts:
        ready = (sequence for sequence in waiting if running.may_start(sequence))
        starting = itertools.islice(ready, running.num_free_slots)
        lacking = (sequence.num_unplanned_tokens for sequence in itertools.chain(prompts, starting))
        draft.end_decodes(budget.next_beside(len(draft.counts), lacking))
    for sequence in prompts:
        if not running.kv.finds.is_loading(sequence):
            _extend(sequence, draft, running)


def admit_waiting(draft: StepDraft, running: Residents, waiting: WaitingQueue, *, begun_only: bool = False) -> None:
    """Let sequences start, in rank order, while there is budget and the first has room for all it has. Those whose
    adapter is not there yet, or for which the connector has not answered, are passed over.

    Later ones do not overtake one that lacks blocks: it would never find enough of them free. Since whoever runs has
    had a token of this step's budget by now, or has one kept for it while its blocks are loaded, no more sequences ever
    run than a step has tokens. Nobody starts in a step that has taken blocks from others; these, above all, have
    results of earlier steps on their way. With `begun_only` only those start that have run before.
    """
    while draft.tokens_left > running.kv.finds.num_loading and not draft.preempted:
        sequence = running.adapters.first_ready(waiting.begun() if begun_only else waiting, running.kv.is_settled)
        if sequence is None or sequence.num_pending_tokens:  # whoever was preempted awaits the token on its way
            return
        found = running.find_prefix(sequence)
        if running.kv.finds.is_torn(sequence, len(found)):
            continue
        if not running.has_room_for(sequence, found):
            return
        waiting.remove(sequence)
        if _start(sequence, found, draft, running):
            _take(sequence, draft.share_of(sequence), draft, running)


def load_more(draft: StepDraft, running: Residents) -> None:
    """Go on with those whose blocks are loaded over several plans, to equal parts, so that a long prompt keeps short
    ones from nothing. Who has all of them is told to the runner now, and has its first row in the next plan.

    Only for a plan that certainly comes to be.
    """
    loading = running.kv.finds.loading
    for index, sequence in enumerate(loading):
        if not draft.loads_left:
            return
        _load(sequence, max(1, draft.loads_left // (len(loading) - index)), draft, running)


def guess_ahead(draft: StepDraft, running: Residents, proposer: Proposer | None, *, foresees: bool = False) -> None:
    """Fill up with guesses at what decoding sequences will say, where budget and free blocks are left over for them:
    the proposer's, and if it `foresees`, for those with a grammar, the grammar's.

    No guess goes beyond the token that certainly is the last.
    """
    for sequence, count in draft.counts.items():
        room = min(
            draft.max_num_tokens - draft.num_taken - draft.num_guesses,
            running.num_tokens_to_spare(sequence) - count,
            sequence.max_num_tokens - sequence.num_tokens - 1,
        )
        if room < 1 or count > 1 or sequence.num_unplanned_tokens > 1:
            continue
        if sequence.grammar is not None:
            if foresees and (foreseen := sequence.grammar.look_ahead(min(room, MAX_FORESEEN))):
                running.grow(sequence, count + len(foreseen))
                draft.foresee(sequence, foreseen)
        elif proposer is not None and (guesses := proposer.propose(sequence, room)):
            running.grow(sequence, count + len(guesses))
            draft.guess(sequence, guesses)


def _extend(sequence: Sequence, draft: StepDraft, running: Residents) -> None:
    """Give a running sequence its share, preempting worse ones if it could not get a single token otherwise.

    The worst of all sits this step out with what it holds; the best always goes on, so there is progress. One that was
    preempted for another in this step has none.
    """
    if sequence.status is not SequenceStatus.RUNNING:
        return
    wanted = draft.share_of(sequence)
    if wanted == 0:
        return
    while (fitting := min(wanted, running.num_tokens_fitting(sequence))) == 0:
        victim = running.worst()
        if victim is sequence:
            return
        _preempt(victim, draft, running)
    _take(sequence, fitting, draft, running)


def _start(sequence: Sequence, found: list[int], draft: StepDraft, running: Residents) -> bool:
    """With the blocks that were found in the pool, and those behind them that the connector has. Whether this plan has
    them all; those that are too many for it, or would come before others', are left to `load_more`."""
    finds = running.kv.finds
    num_loads = finds.start(sequence, len(found))
    running.admit(sequence, found, num_loads)
    if not num_loads:
        draft.admitted.append(sequence)
        return True
    if num_loads > draft.loads_left or finds.num_loading > 1:
        return False
    _load(sequence, num_loads, draft, running)
    return True


def _load(sequence: Sequence, most: int, draft: StepDraft, running: Residents) -> None:
    """So many of its blocks from the connector, at most. With the last of them it may have rows."""
    find, frames = running.kv.finds.take(sequence, most)
    block_size = running.pool.block_size
    first = sequence.num_computed_tokens // block_size
    draft.load(find, map(KvCopy, sequence.block_table[first : first + len(frames)], frames))
    sequence.load_more(len(frames) * block_size)
    if not find.frames:
        draft.admitted.append(sequence)


def _take(sequence: Sequence, count: int, draft: StepDraft, running: Residents) -> None:
    running.grow(sequence, count)
    draft.take(sequence, count)


def _preempt(sequence: Sequence, draft: StepDraft, running: Residents) -> None:
    draft.give_up(sequence)
    running.dismiss(sequence)
    sequence.status = SequenceStatus.PREEMPTED
    draft.preempted.append(sequence)
