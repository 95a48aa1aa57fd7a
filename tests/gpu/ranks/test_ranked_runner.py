"""A runner over ranks does all that one on a single rank does, to the same tokens."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from actors.kv.window import Window
from gpu.kv_frames import KvFrames
from gpu.ranks.follower import Follower
from protocol.errors import CheckpointError, ConflictError, RankLostError, StartError
from protocol.ids import EngineIndex, Epoch
from protocol.kv import KvWindow
from protocol.lora import LoraId, LoraRequest
from protocol.operations import SleepTag
from protocol.parallel import ParallelSpec
from protocol.spec import EngineSpec
from protocol.step import KvCopy, StepPlan
from tests.gpu.test_torch_loras import random_adapters
from tests.gpu.test_torch_runner import load, plan_of, resumes_as_expected
from tests.helpers.adapter_conformance import check_adapters
from tests.helpers.runner_conformance import (
    Driver,
    a_prompt,
    check_blocks_come_back_from_frames,
    check_runner,
    check_saves_come_before_loads_and_these_before_rows,
    params,
)
from tests.helpers.thread_ranks import ignore, load_over_threads, thread_lead
from tests.helpers.tiny_checkpoints import make_checkpoint

TP2, PP2, TP2_PP2 = ParallelSpec(2), ParallelSpec(1, 2), ParallelSpec(2, 2)
WAYS = pytest.mark.parametrize("parallel", [TP2, PP2, TP2_PP2], ids=["tp2", "pp2", "tp2_pp2"])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("mistral")
    make_checkpoint(directory, "mistral_sliding")
    return directory


def test_it_fulfils_what_every_runner_must(checkpoint):
    check_runner(lambda: load_over_threads(checkpoint, PP2))


@WAYS
def test_prompts_that_stages_cut_and_what_runs_beside_them_say_what_one_rank_says(checkpoint, parallel):
    found = []
    for runner in (load(checkpoint, dtype="float32"), load_over_threads(checkpoint, parallel)):
        driver = Driver(runner)
        wishes = [params(6), params(6, temperature=0.7), params(6, prompt_logprobs=1), params(6)]
        prompts = [a_prompt(driver, length, salt) for salt, length in enumerate((60, 3, 40, 21))]
        sequences = [driver.admit(slot, *both) for slot, both in enumerate(zip(prompts, wishes, strict=True))]
        outputs = driver.run(*sequences, chunk=50)
        logprobs = [number for one in sequences[2].prompt_logprobs for number in one.logprobs]
        found.append((outputs, [one.token_ids for one in sequences[2].prompt_logprobs]))
        found.append(pytest.approx(logprobs, abs=1e-4))
        runner.close()
    assert found[0] == found[2]
    assert found[1].expected == found[3]


def test_adapters_are_on_all_ranks(tmp_path):
    adapters = random_adapters(tmp_path / "adapters", make_checkpoint(tmp_path / "model", "llama"))
    check_adapters(load_over_threads(tmp_path / "model", TP2_PP2, max_loras=2), adapters)


def test_the_facts_are_of_all_ranks_together(checkpoint):
    alone, ranked = load(checkpoint, dtype="float32"), load_over_threads(checkpoint, TP2)
    whole, parts = alone.facts.kv_layout, ranked.facts.kv_layout
    assert parts.piece_bytes == [whole.piece_bytes[0] // 2] * 2
    assert parts.digest != whole.digest
    same = {"weights_bytes": 0, "kv_layout": None}
    assert msgspec.structs.replace(ranked.facts, **same) == msgspec.structs.replace(alone.facts, **same)
    assert alone.facts.weights_bytes < ranked.facts.weights_bytes < 1.1 * alone.facts.weights_bytes  # norms are on each
    ranked.close()


def test_a_follower_without_room_for_an_adapter_has_it_refused_on_all(tmp_path):
    adapter, *_ = random_adapters(tmp_path / "adapters", make_checkpoint(tmp_path / "model", "llama"))
    followers: list[Follower] = []
    runner = load_over_threads(tmp_path / "model", PP2, followers, max_loras=2)
    model = followers[0]._model
    add = model.add_lora

    def fail(*_: object) -> None:
        model.add_lora = add
        raise MemoryError("no room on this rank")

    model.add_lora = fail
    request, weights = LoraRequest("pirate", LoraId(3), ""), runner.read_adapter(adapter)
    with pytest.raises(ConflictError, match="adapter 'pirate': rank 1: no room on this rank"):
        runner.add_lora(request, weights)
    assert runner.loras() == []
    runner.add_lora(request, weights)
    assert runner.loras() == [3]
    runner.close()


def test_a_follower_without_room_for_its_cache_has_all_sleep_on(tmp_path):
    make_checkpoint(tmp_path, "llama")
    followers: list[Follower] = []
    runner = load_over_threads(tmp_path, TP2, followers)
    expected = runner.step(plan_of(1, (0, [5, 6, 7], [0]))).sampled
    runner.sleep(1)
    pool = followers[0]._model.pool
    take = pool._take

    def fail() -> None:
        pool._take = take
        raise MemoryError("no room on this rank")

    pool._take = fail
    with pytest.raises(ConflictError, match="wake the KV cache: rank 1: no room on this rank"):
        runner.wake(list(SleepTag))
    assert runner.sleep(0) == [SleepTag.KV_CACHE]
    assert runner.wake(list(SleepTag)) == []
    assert resumes_as_expected(runner, expected)
    runner.close()


@pytest.mark.parametrize("parallel", [TP2, TP2_PP2], ids=["tp2", "tp2_pp2"])
@pytest.mark.parametrize(
    "check", [check_blocks_come_back_from_frames, check_saves_come_before_loads_and_these_before_rows]
)
def test_each_rank_s_piece_of_a_block_comes_back_from_its_frame(checkpoint, parallel, check):
    runner = load_over_threads(checkpoint, parallel)
    assert len(runner.facts.kv_layout.piece_bytes) == parallel.world
    check(lambda: runner, Driver(runner))
    runner.close()


def test_frames_hold_what_every_rank_computed_when_a_plan_without_rows_is_done(checkpoint):
    runner = load_over_threads(checkpoint, TP2_PP2)
    layout = runner.facts.kv_layout
    with Window(layout, 1) as window:
        runner.attach_frames(window.described())
        runner.step(plan_of(1, (0, [5, 6, 7, 8], [9])))
        runner.step(StepPlan(2, [], [], [], [KvCopy(9, 0)]))
        frame = window.frame(0).tobytes()
        pieces = [frame[at : at + size] for at, size in zip(layout.piece_offsets, layout.piece_bytes, strict=True)]
    assert all(any(piece) for piece in pieces)
    assert len(set(pieces)) == 4
    runner.close()


def test_a_step_is_not_done_before_every_rank_has_copied(checkpoint):
    """Whoever hears that it is done may send the frame away, or write to it."""
    followers: list[Follower] = []
    runner = load_over_threads(checkpoint, TP2, followers)
    is_done, found = threading.Event(), []
    model = followers[0]._model
    copy = model.copy_blocks

    def linger(*arguments: object) -> None:
        found.append(is_done.wait(0.1))
        copy(*arguments)

    with Window(runner.facts.kv_layout, 1) as window:
        runner.attach_frames(window.described())
        runner.step(plan_of(1, (0, [5, 6, 7, 8], [9])))
        model.copy_blocks = linger
        runner.step(StepPlan(2, [], [], [], [KvCopy(9, 0)]))
        is_done.set()
    runner.close()
    assert found == [False]


def test_a_window_that_one_follower_cannot_map_no_rank_has(checkpoint, monkeypatch):
    followers: list[Follower] = []
    runner = load_over_threads(checkpoint, TP2, followers)
    opened = KvFrames.__init__

    def fail_on_rank_1(frames: KvFrames, window: KvWindow, rank: int = 0) -> None:
        if rank == 1:
            raise OSError("no such window on this rank")
        opened(frames, window, rank)

    with Window(runner.facts.kv_layout, 2) as window:
        with monkeypatch.context() as patch, pytest.raises(OSError, match="rank 1: no such window on this rank"):
            patch.setattr(KvFrames, "__init__", fail_on_rank_1)
            runner.attach_frames(window.described())
        assert (runner._frames, followers[0]._frames) == (None, None)
        runner.attach_frames(window.described())
        runner.step(plan_of(1, (0, [5, 6, 7, 8], [9])))
        runner.step(StepPlan(2, [], [], [], [KvCopy(9, 1)]))
        assert any(window.frame(1))
        runner.attach_frames(None)
        assert (runner._frames, followers[0]._frames) == (None, None)
    runner.close()


@WAYS
def test_weights_that_cannot_be_read_again_stay_asleep_on_all_ranks_until_they_can(tmp_path, parallel):
    make_checkpoint(tmp_path, "llama")
    runner = load_over_threads(tmp_path, parallel)
    expected = runner.step(plan_of(1, (0, [5, 6, 7], [0]))).sampled
    assert runner.sleep(2) == [SleepTag.KV_CACHE, SleepTag.WEIGHTS]
    weights = tmp_path / "model.safetensors"
    weights.rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="holds no weights"):
        runner.wake(list(SleepTag))
    (tmp_path / "elsewhere").rename(weights)
    assert runner.wake(list(SleepTag)) == []
    assert resumes_as_expected(runner, expected)
    runner.close()


def test_weights_that_one_follower_cannot_read_again_stay_asleep_on_all_ranks(tmp_path):
    make_checkpoint(tmp_path, "llama")
    followers: list[Follower] = []
    runner = load_over_threads(tmp_path, TP2_PP2, followers)
    expected = runner.step(plan_of(1, (0, [5, 6, 7], [0]))).sampled
    runner.sleep(2)
    spec = followers[2]._spec
    followers[2]._spec = msgspec.structs.replace(spec, checkpoint=str(tmp_path / "nowhere"))
    with pytest.raises(CheckpointError, match=r"^rank 3: .*nowhere"):
        runner.wake(list(SleepTag))
    followers[2]._spec = spec
    assert runner.wake(list(SleepTag)) == []
    assert resumes_as_expected(runner, expected)
    runner.close()


def test_a_model_that_cannot_be_cut_so_is_refused_on_all_ranks(checkpoint):
    with pytest.raises(StartError, match="6 query and 2 KV heads: --tensor-parallel-size 4 does not divide them"):
        load_over_threads(checkpoint, ParallelSpec(4))


def test_close_is_told_once_and_frees_the_followers(checkpoint):
    followers: list[Follower] = []
    runner = load_over_threads(checkpoint, TP2, followers)
    runner.close()
    runner.close()
    assert followers[0]._part is None


def test_a_lost_rank_ends_the_step_and_nobody_is_told_anything_after_that(checkpoint):
    spec = EngineSpec(EngineIndex(0), Epoch(1), "", {}, str(checkpoint), parallel=TP2, device="cpu", dtype="float32")
    with thread_lead(spec) as lead:
        model, _, _ = lead.load_models(spec, ignore, None, None)
        assert not lead.is_lost
    with pytest.raises(RankLostError):
        model.compute(plan_of(1, (0, [5, 6, 7], [0])).rows)
    assert lead.is_lost
    model.close()
