"""The machine of test_scheduler_properties with a connector that answers late, with less, twice or never, dies and
comes again: no block is lost, no frame is written that was not granted, every request ends once as it would without
one, and in the end nothing is pinned.
"""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test

from actors.engine.hold import Hold
from actors.engine.scheduler import MAX_IN_FLIGHT
from actors.engine.sequence import SequenceStatus
from protocol.kv import KvParams
from protocol.messages import EngineCoreRequest, FinishReason
from tests.actors.engine.test_scheduler_properties import (
    MAX_MODEL_LEN,
    PARAMS,
    PROMPTS,
    SALTS,
    SchedulerMachine,
    Story,
    grammar_for,
    told,
)
from tests.helpers.memory_connector import KvBench
from tests.helpers.scheduling import DRAFTS, Oracle, a_config, a_request

KV = st.builds(
    KvParams,
    ticket=st.sampled_from([b"", b"", b"ticket"]),
    exports=st.booleans(),
    hands_over=st.booleans(),
    must_load=st.sampled_from([False, False, True]),
)


class KvMachine(SchedulerMachine):
    """What the connector does are rules of their own."""

    @initialize(
        num_tokens=st.integers(10, 24),
        block_size=st.integers(1, 5),
        max_num_seqs=st.integers(2, 4),
        max_num_batched_tokens=st.integers(1, 9),
        max_in_flight=st.sampled_from([1, MAX_IN_FLIGHT]),
        guesses=st.sampled_from(["none", "none", "oracle", "draft model"]),
        max_loras=st.sampled_from([0, 0, 1, 2]),
        num_frames=st.integers(1, 12),
        max_num_loads=st.sampled_from([1, 1, 2, 64]),
        enable_prefix_caching=st.just(True),
    )
    def open(self, num_tokens: int, max_in_flight: int, guesses: str, num_frames: int, **sizes: int):
        self.max_in_flight = max_in_flight
        proposer = Oracle(lambda request: self.run_undisturbed(request).tokens) if guesses == "oracle" else None
        sizes["num_blocks"] = num_tokens // sizes["block_size"]
        config = a_config(policy=self.policy, max_model_len=MAX_MODEL_LEN, **sizes)
        speculative = DRAFTS if guesses == "draft model" else None
        self.bench = KvBench(
            self.checkpoint, config, num_frames=num_frames, answers=False, proposer=proposer, speculative=speculative
        )
        self.bench.take = self.take
        self.scheduler = self.bench.scheduler
        self.answers = []

    # ------------------------------------------------------------------ requests

    @rule(prompt=PROMPTS, params=PARAMS, kv=KV, known=st.sampled_from([0, 0, 2]), salt=SALTS)
    def add_with_kv(self, prompt: list, params: dict, kv: KvParams, known: int, salt: str):
        self.submit(a_request(f"r{len(self.stories)}", prompt, salt=salt, kv=kv, **params), known)

    def run_undisturbed(self, request: EngineCoreRequest) -> Story:
        return super().run_undisturbed(msgspec.structs.replace(request, kv=None))

    @precondition(lambda self: self.stories)
    @rule(data=st.data())
    def resync(self, data: st.DataObject):
        """One that waits for its ticket gives it up if something is wanted of it that it holds back."""
        story = data.draw(st.sampled_from(self.stories))
        request = story.request
        sequence = self.scheduler._live.get(request.request_id)
        if sequence is None or sequence.status is not SequenceStatus.LEAVING:
            return
        offset = len(story.tokens)
        for output in self.scheduler.resync(request.client_index, {request.request_id: offset}):
            assert output.kv_ticket == b""
            self.take([(request.client_index, output)])

    @precondition(lambda self: self.scheduler.request_ids)
    @rule(data=st.data())
    def add_twice(self, data: st.DataObject):
        story = data.draw(st.sampled_from([story for story in self.stories if self.is_open(story)]))
        self.take(self.scheduler.add(story.request, grammar_for(story.request, foresees=True)))
        assert story.end is not None

    @rule(sure=st.integers(0, 5))
    def abort_all(self, sure: int):
        if sure == 0:
            self.take(self.scheduler.abort_all("enough"))
            assert not self.scheduler.request_ids

    # ------------------------------------------------------------------ the engine's main

    @precondition(lambda self: len(self.plans) < self.max_in_flight)
    @rule()
    def schedule(self):
        plan = self.bench.schedule()
        if plan is not None:
            assert self.scheduler.hold is not Hold.ALL
            assert plan.rows or plan.saves or plan.loads
            assert len(plan.loads) <= self.bench.config.max_num_loads
            self.plans.append(plan)
        self.change_adapters()

    @precondition(lambda self: self.plans)
    @rule()
    def commit(self):
        super().commit()
        self.bench.talk()

    @rule(seconds=st.sampled_from([0.1, 2.0, 6.0]))
    def wait(self, seconds: float):
        self.bench.now += seconds
        self.bench.attend()

    @rule(preempts=st.booleans(), external=st.booleans())
    def reset_all(self, preempts: bool, external: bool):
        self.scheduler.reset_prefix_cache(preempts=preempts, external=external)
        self.bench.talk()

    # ------------------------------------------------------------------ the connector

    @precondition(lambda self: self.bench.connector)
    @rule(count=st.integers(1, 6))
    def grant(self, count: int):
        self.bench.connector.grant(count)
        self.bench.talk()

    @precondition(lambda self: self.bench.connector and self.bench.connector.asked)
    @rule(data=st.data(), most=st.sampled_from([None, None, None, 1]), error=st.sampled_from([None, "gone"]))
    def find(self, data: st.DataObject, most: int | None, error: str | None):
        find_id = data.draw(st.sampled_from(sorted(self.bench.connector.asked)))
        self.answers.append(self.bench.connector.answer_find(find_id, most, error))
        self.bench.talk()

    @precondition(lambda self: self.bench.connector and self.answers)
    @rule(data=st.data())
    def find_again(self, data: st.DataObject):
        """A link that says things twice."""
        self.take(self.scheduler.hear_connector(data.draw(st.sampled_from(self.answers))))

    @precondition(lambda self: self.bench.connector and self.bench.connector.exports)
    @rule(most=st.sampled_from([None, None, 1]))
    def export(self, most: int | None):
        self.bench.connector.answer_export(most)
        self.bench.talk()

    @precondition(lambda self: self.bench.connector)
    @rule(sure=st.integers(0, 2))
    def die(self, sure: int):
        if sure == 0:
            self.compute()
            self.answers.clear()
            self.bench.lose()

    @precondition(lambda self: self.bench.connector is None)
    @rule(expected=st.booleans())
    def come(self, expected: bool):
        self.compute()
        if expected and not self.scheduler.kv.is_expected:
            self.scheduler.kv.expect(self.bench.now + 2.0)
        else:
            self.bench.connect()

    @rule(num_steps=st.integers(1, 6))
    def step_and_answer(self, num_steps: int):
        """As things mostly are."""
        for _ in range(num_steps):
            self.bench.attend()
            self.answer_all()
            self.step(1)

    def answer_all(self):
        if self.bench.connector is not None:
            self.bench.connector.answer_all()
            self.bench.talk()

    # ------------------------------------------------------------------ what must be

    @invariant()
    def blocks_and_slots_have_their_owners(self):
        leaving = [s for s in self.scheduler._live.values() if s.status is SequenceStatus.LEAVING]
        assert all(not s.block_table and s.slot is None for s in leaving)
        assert len(leaving) == len(self.scheduler.kv.exports)
        others = {i: s for i, s in self.scheduler._live.items() if s not in leaving}
        live, self.scheduler._live = self.scheduler._live, others
        try:
            super().blocks_and_slots_have_their_owners()
        finally:
            self.scheduler._live = live

    @invariant()
    def frames_have_their_owners(self):
        connector, kv = self.bench.connector, self.scheduler.kv
        if connector is None:
            assert not kv.is_up
            return
        connector.check()
        saves = kv._saves
        assert sorted(connector.granted) == sorted([*saves._granted, *self.frames_in_flight()])
        waiting = set(self.scheduler._waiting)
        assert set(kv.finds._of) <= waiting
        assert kv.finds._torn <= waiting

    def frames_in_flight(self) -> list[int]:
        drafts = [d for d in self.scheduler._in_flight if d.connection == self.scheduler.kv.connection]
        return [save.copy.frame for draft in drafts for save in draft.saves]

    def take(self, addressed):
        """One that is handed over has its end with its ticket."""
        for client, output in addressed:
            super().take([(client, output)])
            story = next(s for s in self.stories if s.request.request_id == output.request_id)
            kv = story.request.kv
            assert output.kv_ticket is None or (kv is not None and (kv.exports or kv.hands_over))
            if output.kv_ticket is not None and output.finish_reason is None:
                assert kv.hands_over
                story.end = output
            ends = (FinishReason.STOP, FinishReason.LENGTH)
            if kv is not None and kv.exports and output.finish_reason in ends:
                assert output.kv_ticket is not None

    def check(self, story: Story):
        kv = story.request.kv
        if kv is not None and story.end is not None and not story.is_aborted:
            undisturbed = self.run_undisturbed(story.request)
            if "could be loaded" in str(story.end.error):
                assert kv.must_load
                return
            if story.end.finish_reason is None:
                num_known = len(story.request.continuation_token_ids)
                assert len(story.tokens) > num_known
                assert len(story.tokens) < len(undisturbed.tokens)
                assert undisturbed.tokens[: len(story.tokens)] == story.tokens
                return
            if kv.hands_over and told(story)[3] != told(undisturbed)[3]:
                assert story.end.finish_reason in (FinishReason.ERROR, FinishReason.ABORT)
        super().check(story)

    def teardown(self):
        if not hasattr(self, "bench"):
            return
        self.scheduler.hold = Hold.NONE
        if self.stories:
            for _ in range(20_000):
                if not self.scheduler.has_work:
                    break
                self.bench.now += 0.01
                self.bench.attend()
                self.answer_all()
                self.step(1)
                while self.coming:
                    self.arrive(0, fails=False)
            super().teardown()
        self.bench.attend()
        if (connector := self.bench.connector) is not None:
            assert not connector.found
            assert not connector.asked
            connector.check()
            connector.close()


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_no_connector_breaks_the_scheduler(tiny: Path, policy: str):
    run_state_machine_as_test(
        lambda: KvMachine(tiny, policy),
        settings=settings(max_examples=40, stateful_step_count=40, phases=[Phase.generate]),
    )
