"""The process that does one task of scripts/gpu_check: a rank, or a receiver of a tensor. Started by task.

The task comes over stdin; the answer is a file that is there at once and whole.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import assert_never

import msgspec
import torch
import torch.distributed as dist

from gpu.cards import take_card
from gpu.groups.groups import Groups
from gpu.groups.open import backend_of, open_groups
from gpu.groups.presence import open_presence
from gpu.groups.rendezvous import Rendezvous
from gpu.groups.torch_group import TorchGroup
from gpu.load_model import load_model, pick_device
from gpu.model import Model
from gpu.ranks.follower import follow
from gpu.ranks.lead import open_lead
from gpu.tensor_ipc import TensorIpcReceiver
from protocol.ids import Slot
from protocol.parallel import ParallelSpec
from protocol.spec import EngineSpec
from protocol.step import Row
from scripts.gpu_checks.numerics import relative_difference
from scripts.gpu_checks.random_model import BLOCK_SIZE
from scripts.gpu_checks.task import Answer, Conform, Follow, Lead, Receive, Task
from tests.helpers.group_conformance import EVERY_CALL, make_calls

CALL_SECONDS = 60.0
SUM_SIZE = 4096
"""Numbers in the sum that is measured: one token's hidden state of a model of 8B."""
REPETITIONS = 50
PROMPTS = (40, 7)
"""Tokens of each."""
DECODE_STEPS = 8


def do(task: Task) -> tuple[Answer, torch.Tensor | None]:
    """With what is to be held as long as this process lives."""
    match task:
        case Conform(spec=spec, rank=rank):
            return conform(spec, rank), None
        case Lead(spec=spec):
            return lead(spec), None
        case Follow(spec=spec, rank=rank):
            follow(spec, rank, lambda _: None, lambda: None, None, Unseen())
            raise AssertionError("a rank follows until it is killed")
        case Receive(handle=handle):
            tensor = TensorIpcReceiver().open(handle)
            assert isinstance(tensor, torch.Tensor)
            return Answer({"tensor": [digest(tensor)]}), tensor
        case _:
            assert_never(task)


class Unseen:
    """Implements gpu.ranks.follower.Work."""

    step = 0

    def enter(self, phase: str) -> None:
        pass


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


# ------------------------------------------------------------------ groups


def conform(spec: EngineSpec, rank: int) -> Answer:
    take_card(spec, rank)
    device = pick_device(spec.device)
    with joined(spec, rank, device) as groups:
        control = torch.device("cpu")
        named = {
            "world": (groups.world, device),
            "tensor": (groups.tensor, device),
            "pipeline": (groups.pipeline, device),
            "control": (groups.control, control),
        }
        digests = {name: make_calls(group, EVERY_CALL, where) for name, (group, where) in named.items()}
        x = torch.ones(SUM_SIZE, device=device, dtype=torch.bfloat16)
        return Answer(digests, seconds=seconds_of(lambda: groups.world.all_reduce(x), device))


@contextmanager
def joined(spec: EngineSpec, rank: int, device: torch.device) -> Iterator[Groups]:
    """As gpu/groups/open, and for one rank a real group too, whose calls go through the backend."""
    rendezvous = Rendezvous.parse(spec.rendezvous)
    if spec.parallel.world > 1:
        with open_groups(spec.parallel, rank, rendezvous, device, CALL_SECONDS, CALL_SECONDS) as groups:
            yield groups
        return
    store = rendezvous.open_store(0, 1, CALL_SECONDS)
    presence = open_presence(store, 0, 1, 0)
    dist.init_process_group(backend_of(device), store=dist.PrefixStore("torch", store), rank=0, world_size=1)
    try:
        world = dist.group.WORLD
        assert world is not None, "it has just been made"
        yield Groups(world=TorchGroup(world, world, presence))
    finally:
        dist.destroy_process_group()


# ------------------------------------------------------------------ a model over ranks


@torch.inference_mode()
def lead(spec: EngineSpec) -> Answer:
    take_card(spec, 0)
    alone, _ = load_model(msgspec.structs.replace(spec, parallel=ParallelSpec(), rendezvous=""), lambda _: None)
    expected, _ = logits_of(alone)
    alone.close()
    with open_lead(spec) as leading:
        model, _, _ = leading.load_models(spec, lambda _: None)
        found, seconds = logits_of(model)
        model.close()
    return Answer(difference=relative_difference(found, expected.double()), seconds=seconds)


def logits_of(model: Model) -> tuple[torch.Tensor, float]:
    """Of prompts and of tokens after them, on the CPU; and the seconds of a decode step."""
    tables = [list(range(slot * 4, slot * 4 + 4)) for slot in range(len(PROMPTS))]
    prompts = [
        Row(Slot(slot), 0, [(11 * place + slot) % 250 for place in range(count)], tables[slot], True)
        for slot, count in enumerate(PROMPTS)
    ]
    assert max(PROMPTS) + DECODE_STEPS <= 4 * BLOCK_SIZE
    steps = [
        [Row(Slot(slot), count + step, [(3 * step) % 250], tables[slot], True) for slot, count in enumerate(PROMPTS)]
        for step in range(DECODE_STEPS)
    ]
    logits = [model.logits(model.compute(prompts).hidden).cpu()]
    begun = 0.0
    for number, rows in enumerate(steps):
        if number == DECODE_STEPS // 2:
            begun = time.perf_counter()
        logits.append(model.logits(model.compute(rows).hidden).cpu())  # which waits for the device
    return torch.cat(logits), (time.perf_counter() - begun) / (DECODE_STEPS - DECODE_STEPS // 2)


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    begun = 0.0
    for repetition in range(2 * REPETITIONS):
        if repetition == REPETITIONS:
            wait_for(device)
            begun = time.perf_counter()
        call()
    wait_for(device)
    return (time.perf_counter() - begun) / REPETITIONS


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    torch.set_num_threads(1)
    task: Task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    held: torch.Tensor | None = None
    try:
        answer, held = do(task)
    except Exception as error:  # whatever it is, the parent tells it
        answer = Answer(error=f"{type(error).__name__}: {error}")
    result = Path(sys.argv[1])
    written = result.with_suffix(".part")
    written.write_bytes(msgspec.json.encode(answer))
    written.rename(result)
    if held is not None:
        threading.Event().wait()


if __name__ == "__main__":
    main()
