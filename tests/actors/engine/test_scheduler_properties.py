"""In whatever order things happen, no block is lost or shared, and every request ends exactly once, as it would alone.

The dummy runner judges each plan (see gpu/fake_slots.py), and its tokens depend on what really lies in the blocks.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from pathlib import Path

import attrs
import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from actors.engine.hold import Hold
from actors.engine.scheduler import MAX_IN_FLIGHT
from actors.engine.sequence import SequenceStatus
from gpu.lora_checkpoint import AdapterWeights
from protocol.ids import ClientIndex, RequestId
from protocol.lora import LoraId, LoraRequest
from protocol.messages import EngineCoreOutput, EngineCoreRequest, FinishReason
from protocol.operations import SleepTag
from protocol.sampling import Grammar
from protocol.step import StepPlan, StepResult
from tests.helpers.scheduling import DRAFTS, EOS, Bench, Oracle, ScriptedGrammar, a_config, a_request

MAX_MODEL_LEN = 24
CLIENTS = st.sampled_from([ClientIndex(0), ClientIndex(0), ClientIndex(0), ClientIndex(1)])
TOKENS = st.lists(st.integers(3, 9), min_size=1, max_size=6)
PROMPTS = st.builds(list.__add__, st.sampled_from([[], [9], [9] * 5, [9] * 8]), TOKENS)
"""Many begin alike, so that they find each other's blocks."""
SALTS = st.sampled_from(["", "", "", "salt"])
ADAPTERS = st.sampled_from([0, 0, 0, 1, 2, 3])
SCRIPT = [9, 8, 7, 6, 5, 4, 3, 9, 8, 7]
PARAMS = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(0, 12),
        "seed": st.integers(0, 3),
        "temperature": st.sampled_from([0.0, 1.0]),
        "eos_token_ids": st.sampled_from([[], [EOS]]),
        "stop_token_ids": st.sampled_from([[], [*range(10, 20)]]),
        "min_tokens": st.sampled_from([0, 3]),
        "logprobs": st.sampled_from([None, 1]),
        "prompt_logprobs": st.sampled_from([None, 1]),
        "grammar": st.sampled_from([None, None, Grammar("scripted")]),
    }
)


@attrs.define
class Story:
    """One request as its client sees it."""

    request: EngineCoreRequest
    tokens: list[int]
    logprobs: list[object] = attrs.field(factory=list)
    prompt_logprobs: list[object] | None = None
    end: EngineCoreOutput | None = None
    is_aborted: bool = False
    is_forgotten: bool = False

    def take(self, output: EngineCoreOutput) -> None:
        """An output that goes on exactly where the last one ended."""
        assert not self.is_aborted, f"{output.request_id} was aborted and speaks"
        assert self.end is None, f"{output.request_id} ended and speaks"
        assert output.offset == len(self.tokens)
        self.tokens += output.new_token_ids
        self.logprobs += output.logprobs or []
        assert output.prompt_logprobs is None or self.prompt_logprobs is None
        self.prompt_logprobs = output.prompt_logprobs or self.prompt_logprobs
        if output.finish_reason is not None:
            self.end = output


def told(story: Story) -> tuple[object, ...]:
    """All that a client has in the end."""
    assert story.end is not None
    how = (story.end.finish_reason, story.end.stop_reason, story.end.error)
    return (story.tokens, story.logprobs, story.prompt_logprobs, how)


def grammar_for(request: EngineCoreRequest, *, foresees: bool) -> ScriptedGrammar | None:
    """What it foresees is always right, or half of the time."""
    params = request.sampling_params
    return None if params.grammar is None else ScriptedGrammar(SCRIPT, others=params.seed > 1, foresees=foresees)


class SchedulerMachine(RuleBasedStateMachine):
    """Clients, the engine's main and the runner, in any order that the contract allows."""

    def __init__(self, checkpoint: Path, policy: str) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        self.policy = policy
        self.stories: list[Story] = []
        self.plans: deque[StepPlan] = deque()
        self.results: dict[int, StepResult] = {}
        """Of plans that were computed and are not committed yet."""
        self.coming: list[LoraRequest] = []
        self.undisturbed: dict[bytes, Story] = {}

    @initialize(
        num_tokens=st.integers(10, 24),
        block_size=st.integers(1, 5),
        max_num_seqs=st.integers(2, 4),
        max_num_batched_tokens=st.integers(1, 9),
        enable_prefix_caching=st.sampled_from([True, True, True, False]),
        max_in_flight=st.sampled_from([1, MAX_IN_FLIGHT]),
        guesses=st.sampled_from(["none", "oracle", "draft model"]),
        max_loras=st.sampled_from([0, 1, 2]),
    )
    def open(self, num_tokens: int, max_in_flight: int, guesses: str, **sizes: int):
        self.max_in_flight = max_in_flight
        proposer = Oracle(lambda request: self.run_undisturbed(request).tokens) if guesses == "oracle" else None
        sizes["num_blocks"] = num_tokens // sizes["block_size"]
        config = a_config(policy=self.policy, max_model_len=MAX_MODEL_LEN, **sizes)
        speculative = DRAFTS if guesses == "draft model" else None
        self.bench = Bench(self.checkpoint, config, proposer=proposer, speculative=speculative)
        self.scheduler = self.bench.scheduler

    @rule(
        prompt=PROMPTS,
        params=PARAMS,
        client=CLIENTS,
        priority=st.integers(0, 2),
        arrival=st.integers(0, 3),
        known=st.sampled_from([0, 0, 2, 9]),
        salt=SALTS,
        lora=ADAPTERS,
    )
    def add(
        self,
        prompt: list,
        params: dict,
        client: ClientIndex,
        priority: int,
        arrival: int,
        known: int,
        salt: str,
        lora: int,
    ):
        """Sometimes with tokens that an earlier incarnation made."""
        rank = {"client": client, "priority": priority, "arrival": float(arrival)}
        lora = lora if self.bench.config.max_loras else 0
        self.submit(a_request(f"r{len(self.stories)}", prompt, salt=salt, lora=lora, **rank, **params), known)

    @rule(
        prompts=st.lists(st.lists(st.integers(3, 9), min_size=1, max_size=5), min_size=2, max_size=4),
        arrivals=st.permutations([1.0, 2.0, 3.0, 4.0]),
        logprobs=st.sampled_from([None, 1]),
    )
    def add_crowd(self, prompts: list, arrivals: list, logprobs: int | None):
        """More than the blocks hold once they have grown, so that some are preempted."""
        for prompt, arrival in zip(prompts, arrivals, strict=False):
            wish = {"max_tokens": 12, "prompt_logprobs": logprobs, "temperature": 1.0}
            self.submit(a_request(f"r{len(self.stories)}", prompt, arrival=arrival, priority=-len(prompt), **wish))

    def submit(self, request: EngineCoreRequest, known: int = 0):
        made = self.run_undisturbed(request).tokens[:known]
        request = msgspec.structs.replace(request, continuation_token_ids=made)
        self.stories.append(Story(request, list(made)))
        self.take(self.scheduler.add(request, grammar_for(request, foresees=True)))

    @precondition(lambda self: self.scheduler.has_work)
    @rule(data=st.data())
    def add_twice(self, data: st.DataObject):
        story = data.draw(st.sampled_from([story for story in self.stories if self.is_open(story)]))
        self.take(self.scheduler.add(story.request, grammar_for(story.request, foresees=True)))
        assert story.end is not None

    @precondition(lambda self: self.stories)
    @rule(data=st.data(), client=CLIENTS)
    def abort(self, data: st.DataObject, client: ClientIndex):
        some = data.draw(st.lists(st.sampled_from(self.stories), max_size=2))
        self.scheduler.abort(client, [story.request.request_id for story in some])
        self.mark_aborted(story for story in some if story.request.client_index == client)

    @rule()
    def abort_client(self):
        client = ClientIndex(1)
        self.scheduler.abort_client(client)
        theirs = [story for story in self.stories if story.request.client_index == client]
        self.mark_aborted(theirs)
        for story in theirs:
            story.is_forgotten = True

    @rule(hold=st.sampled_from([Hold.NONE, Hold.NONE, Hold.NEW, Hold.ALL]))
    def hold(self, hold: Hold):
        self.scheduler.hold = hold

    @rule(preempts=st.booleans(), sleeps=st.booleans())
    def reset_prefix_cache(self, preempts: bool, sleeps: bool):
        """Sometimes the runner forgets everything with it."""
        used = self.scheduler.stats().kv_blocks_used
        was_done = self.scheduler.reset_prefix_cache(preempts=preempts)
        assert was_done == (preempts or used == 0)
        if was_done:
            assert not self.scheduler._pool._by_hash
        if was_done and sleeps and not self.plans:
            self.bench.runner.sleep(2)
            self.bench.runner.wake(list(SleepTag))

    @rule(sure=st.integers(0, 5))
    def abort_all(self, sure: int):
        """Rarely, since little happens after it."""
        if sure == 0:
            self.take(self.scheduler.abort_all("enough"))
            assert not self.scheduler.has_work

    @precondition(lambda self: len(self.plans) < self.max_in_flight)
    @rule()
    def schedule(self):
        hold = self.scheduler.hold
        begun = {s.request_id for s in self.scheduler._live.values() if s.status is not SequenceStatus.WAITING}
        decoding = [s for s in self.scheduler._running if s.num_unplanned_tokens == 1 and not s.is_about_to_end]
        plan = self.bench.schedule()
        if plan is not None:
            self.plans.append(plan)
        self.change_adapters()
        if plan is None:
            is_idle = hold is Hold.ALL or not (begun if hold else self.scheduler.has_work)
            assert self.plans or is_idle or self.scheduler._awaits_adapters()
            return
        assert hold is not Hold.ALL
        assert plan.rows
        assert hold is Hold.NONE or begun >= {new.request_id for new in plan.new_sequences}
        left_out = {s.slot for s in decoding} - {None} - {row.slot for row in plan.rows}
        assert not left_out or self.scheduler.stats().kv_blocks_used == self.bench.config.num_blocks

    @precondition(lambda self: self.plans)
    @rule()
    def commit(self):
        self.compute()
        plan = self.plans.popleft()
        self.take(self.scheduler.commit(plan, self.results.pop(plan.step)))

    def compute(self):
        """All that was planned, in order."""
        for plan in self.plans:
            if plan.step not in self.results:
                self.results[plan.step] = self.bench.compute(plan)

    def change_adapters(self):
        """What leaves does so behind the plans; what comes takes its time."""
        for change in self.scheduler.take_adapter_changes():
            if change.leaving is not None:
                self.compute()
                assert self.bench.runner.remove_lora(change.leaving)
            if change.coming is not None:
                self.coming.append(change.coming)

    @precondition(lambda self: self.coming)
    @rule(index=st.integers(0, 1), fails=st.sampled_from([False, False, False, True]))
    def arrive(self, index: int, fails: bool):
        lora = self.coming.pop(index % len(self.coming))
        if fails:
            self.take(self.scheduler.fail_adapter(lora.lora_id, "no adapter"))
        else:
            self.bench.runner.add_lora(lora, AdapterWeights({}))
            self.scheduler.adapters.arrive(lora.lora_id)

    @rule(number=st.integers(1, 3))
    def unload(self, number: int):
        self.scheduler.adapters.discard(LoraId(number))

    @rule(num_steps=st.integers(1, 6))
    def step(self, num_steps: int):
        for _ in range(num_steps):
            while len(self.plans) < self.max_in_flight:
                num_plans = len(self.plans)
                self.schedule()
                if len(self.plans) == num_plans:
                    break
            if self.plans:
                self.commit()

    @precondition(lambda self: self.stories)
    @rule(data=st.data())
    def resync(self, data: st.DataObject):
        """Whatever is said again is what was said before."""
        story = data.draw(st.sampled_from(self.stories))
        first = len(story.request.continuation_token_ids)
        offset = data.draw(st.integers(first, len(story.tokens)))
        answers = self.scheduler.resync(story.request.client_index, {story.request.request_id: offset})
        if not answers:
            assert self.is_open(story)
            assert offset == len(story.tokens)
            return
        (answer,) = answers
        if story.is_aborted or story.is_forgotten:
            assert answer.error == "unknown request"
            return
        assert answer.new_token_ids == story.tokens[offset:]
        assert (answer.logprobs or []) == story.logprobs[offset - first :]
        assert answer.prompt_logprobs == (story.prompt_logprobs if offset == first else None)
        assert answer.finish_reason == (None if story.end is None else story.end.finish_reason)

    @invariant()
    def blocks_and_slots_have_their_owners(self):
        live = list(self.scheduler._live.values())
        blocks = Counter(block for sequence in live for block in sequence.block_table)
        slots = [sequence.slot for sequence in live if sequence.slot is not None]
        stats = self.scheduler.stats()
        assert [blocks[block] for block in range(self.bench.config.num_blocks)] == self.scheduler._pool._num_owners
        assert len(blocks) == stats.kv_blocks_used
        assert max(blocks.values(), default=1) == 1 or self.bench.config.enable_prefix_caching
        for sequence in live:
            own = sequence.block_table[sequence.num_published_blocks :]
            assert all(blocks[block] == 1 for block in own), "a block is shared that is still written"
        assert len(set(slots)) == len(slots) == stats.num_requests_running
        assert stats.num_requests_running + stats.num_requests_waiting == len(live)

    @invariant()
    def the_runner_has_the_adapters_that_it_is_said_to_have(self):
        adapters = self.scheduler.adapters
        assert self.bench.runner.loras() == [] or adapters.num_places
        assert sorted(self.bench.runner.loras()) == adapters.state.lora_ids
        used = Counter(s.lora_id for s in self.scheduler._running if s.lora_id)
        assert used == adapters._num_running
        assert len(adapters.state.lora_ids) + len(self.coming) <= adapters.num_places

    @invariant()
    def exactly_the_open_requests_are_live(self):
        open_ids = [story.request.request_id for story in self.stories if self.is_open(story)]
        assert sorted(self.scheduler.request_ids) == sorted(open_ids)

    def teardown(self):
        if not self.stories:
            return
        self.scheduler.hold = Hold.NONE
        for _ in range(20_000):
            if not self.scheduler.has_work:
                break
            self.step(1)
            while self.coming:
                self.arrive(0, fails=False)
        while self.plans:
            self.commit()
        assert not self.scheduler.has_work, f"no end in sight: {self.scheduler!r}"
        assert self.scheduler.stats().kv_blocks_used == 0
        for story in self.stories:
            self.check(story)

    def check(self, story: Story):
        """As alone; where the tiny pool ended it, as alone so far."""
        if story.is_aborted or "twice" in str(story.end and story.end.error):
            return
        assert story.end is not None, f"{story.request.request_id} never ended"
        undisturbed = self.run_undisturbed(story.request)
        if story.end.error == "no adapter":
            assert undisturbed.tokens[: len(story.tokens)] == story.tokens
        elif story.end.finish_reason is FinishReason.ABORT:
            assert story.end.error == "enough"
            assert undisturbed.tokens[: len(story.tokens)] == story.tokens
        elif "KV blocks" in str(story.end.error):
            assert story.end.finish_reason is FinishReason.ERROR
            assert undisturbed.tokens[: len(story.tokens)] == story.tokens
        else:
            assert told(story) == told(undisturbed)

    def run_undisturbed(self, request: EngineCoreRequest) -> Story:
        key = msgspec.msgpack.encode(request)
        if key not in self.undisturbed:
            sizes = {"max_num_batched_tokens": 64, "max_model_len": MAX_MODEL_LEN, "enable_prefix_caching": False}
            bench = Bench(self.checkpoint, a_config(max_loras=1, **sizes))
            bench.add(request, grammar_for(request, foresees=False))
            bench.run()
            story = Story(request, list(request.continuation_token_ids))
            for output in bench.outputs[request.request_id]:
                story.take(output)
            self.undisturbed[key] = story
        return self.undisturbed[key]

    def take(self, addressed: Iterable[tuple[ClientIndex, EngineCoreOutput]]):
        by_id: dict[RequestId, Story] = {story.request.request_id: story for story in self.stories}
        for client, output in addressed:
            assert by_id[output.request_id].request.client_index == client
            by_id[output.request_id].take(output)

    def mark_aborted(self, stories: Iterable[Story]):
        for story in stories:
            if story.end is None:
                story.is_aborted = True

    def is_open(self, story: Story) -> bool:
        return story.end is None and not story.is_aborted


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_no_order_of_events_breaks_the_scheduler(tiny: Path, policy: str):
    run_state_machine_as_test(
        lambda: SchedulerMachine(tiny, policy),
        settings=settings(max_examples=30, stateful_step_count=30),
    )
