"""A draft model changes how many steps an answer takes and no token of it, and follows on memory of its own."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from transformers import PreTrainedModel

from actors.engine.scheduler_config import SchedulerConfig
from actors.kv.window import Window
from app.settings import default_cache_directory
from gpu.draft_model import CATCH_UP_TOKENS, DraftModel
from gpu.load_model import load_model
from gpu.sequence_slot import SequenceSlot
from gpu.torch_runner import TorchRunner
from protocol.errors import CheckpointError
from protocol.ids import RequestId, Slot
from protocol.messages import EngineCoreRequest
from protocol.operations import SleepTag
from protocol.parallel import ParallelSpec
from protocol.spec import DraftModelSpec, EngineSpec, LoadFormat
from protocol.step import KvCopy, NewSequence
from tests.helpers import tiny_checkpoints, wide_checkpoints
from tests.helpers.runner_conformance import Driver, a_prompt, params
from tests.helpers.scheduling import Bench, a_config, a_request, a_spec
from tests.helpers.thread_ranks import thread_lead

CONFIG = a_config(num_blocks=40, block_size=16, max_num_batched_tokens=64, max_model_len=250)
VOCAB_SIZE = wide_checkpoints.VOCAB_SIZE
REQUESTS = [
    a_request("greedy", range(5, 40), max_tokens=40),
    a_request("sampled", range(50, 60), max_tokens=40, temperature=0.7, logprobs=2),
    a_request("penalised", range(50, 90), max_tokens=30, temperature=0.5, frequency_penalty=1.0, min_tokens=9),
    a_request("stopped", range(100, 220), max_tokens=60, temperature=0.7, stop_token_ids=[*range(40)]),
    a_request("first", range(30), max_tokens=1),
]


class Checkpoints:
    """One that is served, and drafts: itself, one that often agrees, and one that knows nothing of it."""

    def __init__(self, directory: Path, path: str) -> None:
        self.path = path
        self.itself = directory / "itself"
        self.near = directory / "near"
        self.other = directory / "other"
        kinds = {"torch": ("llama", "mistral_sliding"), "native": ("llama", "qwen2")}[path]
        near = self._make(self.itself, kinds[0])
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in near.parameters():
                parameter += 0.03 * parameter.std() * torch.randn(parameter.shape, generator=generator)
        near.to(torch.bfloat16 if path == "native" else torch.float32).save_pretrained(self.near)
        tiny_checkpoints.write_tokenizer(self.near)
        self._make(self.other, kinds[1])

    def _make(self, directory: Path, kind: str) -> PreTrainedModel:
        if self.path == "torch":
            return tiny_checkpoints.make_checkpoint(directory, kind)
        return wide_checkpoints.make_checkpoint(directory, kind, torch.bfloat16)

    def spec(self, draft: Path | None = None, config: SchedulerConfig = CONFIG, **changes: object) -> EngineSpec:
        speculative = None if draft is None else DraftModelSpec(4, str(draft))
        real = {"load_format": LoadFormat.AUTO, "device": "cpu", "threads": 1}
        cache = {"cache_directory": str(default_cache_directory())}
        return msgspec.structs.replace(a_spec(self.itself, config, speculative), **real | cache | changes)


@pytest.fixture(scope="module", params=["torch", "native"])
def checkpoints(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp("one"), "torch")


def serve(spec: EngineSpec, config: SchedulerConfig, *requests: EngineCoreRequest) -> Bench:
    runner = TorchRunner.load(spec, lambda _: None, leading=thread_lead(spec) if spec.parallel.world > 1 else None)
    speculative = spec.speculative if isinstance(spec.speculative, DraftModelSpec) else None
    bench = Bench(Path(spec.checkpoint), config, speculative=speculative, runner=runner)
    for request in requests:
        bench.add(request)
    bench.run()
    runner.close()
    return bench


def told(bench: Bench, request: EngineCoreRequest) -> tuple[object, ...]:
    last = bench.finish(request.request_id)
    logprobs = [entry.token_ids for output in bench.outputs[request.request_id] for entry in output.logprobs or []]
    return bench.tokens(request.request_id), logprobs, last.finish_reason, last.stop_reason, last.error


@pytest.mark.parametrize("name", ["itself", "near", "other"])
def test_texts_are_those_of_the_model_alone(checkpoints: Checkpoints, name: str):
    draft = {"itself": checkpoints.itself, "near": checkpoints.near, "other": checkpoints.other}[name]
    plain = serve(checkpoints.spec(), CONFIG, *REQUESTS)
    drafted = serve(checkpoints.spec(draft), CONFIG, *REQUESTS)
    for request in REQUESTS:
        assert told(drafted, request) == told(plain, request)
    stats = drafted.scheduler.stats()
    assert stats.spec_decode_num_draft_tokens > 0
    if name != "other":
        assert stats.spec_decode_num_accepted_tokens > 10


@pytest.mark.parametrize("parallel", [ParallelSpec(2), ParallelSpec(1, 2)], ids=["tp2", "pp2"])
def test_over_ranks_the_draft_model_is_the_leading_one_s_own(one: Checkpoints, parallel: ParallelSpec):
    plain = serve(one.spec(), CONFIG, *REQUESTS)
    drafted = serve(one.spec(one.near, parallel=parallel), CONFIG, *REQUESTS)
    for request in REQUESTS:
        assert told(drafted, request) == told(plain, request)
    assert drafted.scheduler.stats().spec_decode_num_accepted_tokens > 10


def test_preempted_and_cached_sequences_are_caught_up_with(checkpoints: Checkpoints):
    config = a_config(num_blocks=14, block_size=16, max_num_batched_tokens=40, max_model_len=200)
    requests = [
        a_request(name, [*range(40), base], max_tokens=60, temperature=0.6, seed=base)
        for name, base in (("a", 50), ("b", 60), ("c", 70), ("d", 80))
    ]
    plain = serve(checkpoints.spec(config=config), config, *requests)
    drafted = serve(checkpoints.spec(checkpoints.near, config=config), config, *requests)
    for request in requests:
        assert told(drafted, request) == told(plain, request)
    stats = drafted.scheduler.stats()
    assert stats.num_preemptions > 0
    assert stats.prefix_cache_hits > 0
    assert stats.spec_decode_num_accepted_tokens > 10


def test_what_begins_with_loaded_blocks_is_caught_up_with(checkpoints: Checkpoints):
    """The draft model computes them for itself, in blocks of its own."""
    texts = []
    wish = params(24, temperature=0.7)
    for draft in (None, checkpoints.near):
        driver = Driver(TorchRunner.load(checkpoints.spec(draft), lambda _: None))
        layout = driver.runner.facts.kv_layout
        with Window(layout, 4) as window:
            driver.runner.attach_frames(window.described())
            first = driver.admit(0, a_prompt(driver, 40), params(1))
            driver.run(first)
            driver.step(saves=[KvCopy(block, index) for index, block in enumerate(first.blocks[:2])])
            driver.free(first)
            loaded = driver.admit_loaded(1, first, wish)
            loads = [KvCopy(block, index) for index, block in enumerate(loaded.blocks)]
            result = driver.step((loaded, len(loaded.prompt) - loaded.computed), loads=loads)
            num_guesses = 0
            while len(loaded.output) < 20:
                guesses = {loaded.slot: result.drafts[0][:3]} if result.drafts else {}
                result = driver.step((loaded, 1), drafts=guesses)
                num_guesses += sum(map(len, guesses.values()))
        assert (num_guesses > 0) == (draft is not None)
        texts.append(loaded.output[:20])
        driver.runner.close()
    assert texts[0] == texts[1]


def test_a_model_that_drafts_for_itself_is_always_right_when_greedy(checkpoints: Checkpoints):
    requests = [a_request(str(i), range(10 * i, 10 * i + 30), max_tokens=40) for i in range(3)]
    bench = serve(checkpoints.spec(checkpoints.itself), CONFIG, *requests)
    stats = bench.scheduler.stats()
    assert stats.spec_decode_num_accepted_tokens >= 0.97 * stats.spec_decode_num_draft_tokens
    assert stats.generation_tokens == 3 * 40
    assert len(bench.plans) < 15


def test_facts_count_both_models(one: Checkpoints):
    spec = one.spec(num_gpu_blocks_override=None, kv_cache_memory_bytes=2**20)
    alone = TorchRunner.load(spec, lambda _: None).facts
    progress: list[float] = []
    speculative = DraftModelSpec(4, str(one.itself))
    both = TorchRunner.load(msgspec.structs.replace(spec, speculative=speculative), progress.append).facts
    assert both.weights_bytes == 2 * alone.weights_bytes
    assert 0.9 * 2**20 < both.kv_cache_bytes <= 2**20
    assert both.num_blocks < alone.num_blocks
    assert progress == sorted(progress)
    assert progress[-1] == 1.0


def test_what_is_wrong_with_the_draft_model_is_said_of_it(one: Checkpoints, tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=f"the draft model {tmp_path.name}: .*config.json"):
        TorchRunner.load(one.spec(tmp_path), lambda _: None)


# ------------------------------------------------------------------ by itself


def a_drafter(
    one: Checkpoints, num_blocks: int, target_vocab_size: int = VOCAB_SIZE, num_drafts: int = 3
) -> DraftModel:
    model, size = load_model(one.spec(num_gpu_blocks_override=num_blocks, max_model_len=None), lambda _: None)
    return DraftModel(model, size, num_drafts, target_vocab_size, 10_000)


def a_slot(prompt: list[int], max_tokens: int = 100) -> SequenceSlot:
    new = NewSequence(Slot(0), RequestId("a"), prompt, [], params(max_tokens))
    return SequenceSlot(new, VOCAB_SIZE, torch.device("cpu"))


def test_a_long_prompt_is_computed_over_several_steps_beside_those_that_are_kept_up_with(tmp_path: Path):
    longer = wide_checkpoints.make_checkpoint(tmp_path, "llama", torch.bfloat16)
    assert longer.config.max_position_embeddings > CATCH_UP_TOKENS + 60
    model, size = load_model(
        EngineSpec(0, 1, "", {}, str(tmp_path), device="cpu", dtype="float32", num_gpu_blocks_override=64),
        lambda _: None,
    )
    drafter = DraftModel(model, size, 3, VOCAB_SIZE, 10_000)
    short, long = a_slot([5, 6, 7]), a_slot([token % 300 for token in range(CATCH_UP_TOKENS + 50)])
    with torch.inference_mode():
        first = drafter.draft({Slot(0): short, Slot(1): long})
        assert [*first] == [Slot(0)]
        short.append(first[Slot(0)][0])
        second = drafter.draft({Slot(0): short, Slot(1): long})
    assert sorted(second) == [Slot(0), Slot(1)]
    assert second[Slot(0)][:2] == first[Slot(0)][1:]


def test_guesses_do_not_depend_on_how_many_came_true_before(one: Checkpoints):
    with torch.inference_mode():
        for accepted in range(4):
            drafter = a_drafter(one, 16)
            slot = a_slot([9, 8, 7, 6])
            guesses = drafter.draft({Slot(0): slot})[Slot(0)]
            for token_id in [*guesses[:accepted], (guesses[-1] + 1) % VOCAB_SIZE, 11]:
                slot.append(token_id)
            fresh = a_drafter(one, 16).draft({Slot(1): slot})[Slot(1)]
            assert drafter.draft({Slot(0): slot})[Slot(0)] == fresh


def test_a_token_that_equals_a_guess_without_having_been_tried_is_followed_too(one: Checkpoints):
    """The scheduler had no room to try it."""
    drafter = a_drafter(one, 16)
    slot = a_slot([9, 8, 7, 6])
    with torch.inference_mode():
        guesses = drafter.draft({Slot(0): slot})[Slot(0)]
        slot.append(guesses[0])
        assert drafter.draft({Slot(0): slot})[Slot(0)][:2] == guesses[1:]


def test_without_room_in_its_pool_it_says_nothing_and_takes_nothing(one: Checkpoints):
    drafter = a_drafter(one, 3)
    slots = {Slot(0): a_slot([5] * 30), Slot(1): a_slot([6] * 31)}
    with torch.inference_mode():
        assert [*drafter.draft(slots)] == [Slot(0)]
        drafter.free(Slot(0))
        drafter.free(Slot(9))
        assert [*drafter.draft({Slot(1): slots[Slot(1)]})] == [Slot(1)]
        drafter.free(Slot(1))
    assert drafter.num_free_blocks == 3


def test_nothing_is_guessed_beyond_the_end_or_with_tokens_that_one_of_both_lacks(one: Checkpoints):
    with torch.inference_mode():
        drafter = a_drafter(one, 16, target_vocab_size=10)
        assert max(drafter.draft({Slot(0): a_slot([5, 6])})[Slot(0)]) < 10
        assert drafter.draft({Slot(1): a_slot([5, VOCAB_SIZE, 6])}) == {}
        assert len(drafter.draft({Slot(2): a_slot([5, 6], max_tokens=3)})[Slot(2)]) == 2
        assert drafter.draft({Slot(3): a_slot([5, 6], max_tokens=1)}) == {}
        assert drafter.draft({}) == {}


@pytest.mark.parametrize("level", [1, 2])
def test_after_a_sleep_it_catches_up_again_and_guesses_as_before(checkpoints: Checkpoints, level: int):
    undisturbed = serve(checkpoints.spec(checkpoints.itself), CONFIG, *REQUESTS)
    spec = checkpoints.spec(checkpoints.itself)
    runner = TorchRunner.load(spec, lambda _: None)
    bench = Bench(checkpoints.itself, CONFIG, speculative=DraftModelSpec(4, str(checkpoints.itself)), runner=runner)
    for request in REQUESTS:
        bench.add(request)
    for _ in range(6):
        bench.step()
    assert bench.scheduler.reset_prefix_cache(preempts=True)
    bench.runner.sleep(level)
    assert bench.runner.wake(list(SleepTag)) == []
    bench.run()
    bench.runner.close()
    for request in REQUESTS:
        assert told(bench, request) == told(undisturbed, request)
    assert bench.scheduler.stats().spec_decode_num_accepted_tokens > 0
