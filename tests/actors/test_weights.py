"""The weights actor in a house of real processes: one copy for all engines, and no engine that depends on it."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
import torch
import trio
from transformers import LlamaConfig, LlamaForCausalLM

from protocol.ids import FIRST_CLIENT, EngineIndex
from protocol.messages import EngineCoreRequest
from protocol.sampling import SamplingParams
from protocol.spec import LoadFormat
from tests.helpers.processes import children
from tests.helpers.tiny_checkpoints import SIZES, make_checkpoint, save_checkpoint
from tests.helpers.watched_house import house_spec, open_house

pytestmark = pytest.mark.process


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    make_checkpoint(tmp_path)
    return tmp_path


def mapped_from(pid: int, mark: str) -> dict[str, int]:
    """Bytes of memory that a process has in mappings whose file's name contains this: Rss and Pss."""
    sizes = dict.fromkeys(("Rss", "Pss"), 0)
    counts = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            counts = mark in line
        elif counts and (found := re.match(r"(Rss|Pss): +(\d+) kB", line)):
            sizes[found[1]] += int(found[2]) * 1024
    return sizes


async def test_two_engines_have_one_copy_of_the_weights(tmp_path):
    sizes = SIZES | {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8}
    with torch.random.fork_rng():
        model = LlamaForCausalLM(LlamaConfig(**sizes))
    save_checkpoint(tmp_path, model)
    weights = sum(tensor.numel() for tensor in model.state_dict().values()) * 4
    async with open_house(house_spec(tmp_path, num_engines=2)) as watched:
        await watched.until_ready("engine-0", "engine-1", "weights-0")
        states = [watched.state(name) for name in ("engine-0", "engine-1")]
        for index, state in enumerate(states):  # a token each, so that all weights are read
            request = EngineCoreRequest(
                state.epoch, FIRST_CLIENT, "r", [1, 2], SamplingParams(max_tokens=1, seed=1), 0.0
            )
            assert watched.house.send_to_engine(EngineIndex(index), request)
        found = [mapped_from(state.pid, "trillm-weights") for state in states]
        while any(one["Rss"] < 0.9 * weights for one in found):
            await trio.sleep(0.02)
            found = [mapped_from(state.pid, "trillm-weights") for state in states]
        assert sum(one["Pss"] for one in found) <= 1.05 * weights
        facts = watched.house.engine_facts(EngineIndex(0), watched.state("engine-0").epoch)
        assert facts is not None
        assert facts.weights_bytes == weights


async def test_killed_engines_and_weights_actors_come_back_and_find_each_other(checkpoint):
    async with open_house(house_spec(checkpoint)) as watched:
        await watched.until_ready("engine-0", "output-0", "weights-0")
        assert not watched.state("weights-0").is_needed
        assert os.getpriority(os.PRIO_PROCESS, watched.state("weights-0").pid) > 0
        await watched.kill("engine-0")
        assert mapped_lines(watched.state("engine-0").pid) > 0

        engine = watched.state("engine-0").pid
        await watched.kill("weights-0")
        assert watched.state("engine-0").pid == engine
        assert mapped_lines(engine) > 0, "it keeps what it has mapped"

        for name in ("weights-0", "engine-0"):  # the engine waits for the next weights actor
            os.kill(watched.state(name).pid, signal.SIGKILL)
        await watched.until_successor("engine-0", engine)
        assert mapped_lines(watched.state("engine-0").pid) > 0


def mapped_lines(pid: int) -> int:
    return Path(f"/proc/{pid}/maps").read_text().count("trillm-weights")


async def test_weights_that_nobody_can_load_end_the_start_with_their_sentence(checkpoint, caplog):
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes().replace(b"model.norm.weight", b"model.none.weight"))
    async with open_house(house_spec(checkpoint)) as watched:
        while not watched.failures:
            await trio.sleep(0.01)
    assert watched.failures[0] in ("weights-0 could not start", "engine-0 could not start")
    assert "tensor model.norm.weight of shape [48] is missing in model.safetensors" in caplog.text


async def test_a_weights_actor_that_keeps_dying_ends_no_service(checkpoint, caplog):
    async with open_house(house_spec(checkpoint)) as watched:
        await watched.until_ready("engine-0", "output-0", "weights-0")
        pids = {None}
        for _ in range(4):
            await watched.until(lambda: watched.state("weights-0").pid not in pids)
            pids.add(watched.state("weights-0").pid)
            os.kill(watched.state("weights-0").pid, signal.SIGKILL)
        await watched.until(lambda: "engines load by themselves from now on" in caplog.text)
        assert watched.state("engine-0").ready
        assert not watched.state("weights-0").is_needed
        await watched.kill("engine-0")
        assert mapped_lines(watched.state("engine-0").pid) == 0
        assert "weights-0" not in children(os.getpid())


async def test_the_dummy_model_has_no_weights_actor(checkpoint):
    async with open_house(house_spec(checkpoint, load_format=LoadFormat.DUMMY)) as watched:
        await watched.until_ready("engine-0", "output-0")
        assert [state.name for state in watched.house.states()] == ["engine-0", "output-0"]
        assert set(children(os.getpid())) == {"engine-0", "output-0"}
