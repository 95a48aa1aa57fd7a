"""Commands of any length arrive as they were told, and all ranks hear what one of them could not do."""

from __future__ import annotations

import pytest
import torch
from msgspec import msgpack

from gpu.groups.groups import Groups
from gpu.ranks.command_group import ANSWER_BYTES, FRAME_BYTES, CommandGroup
from gpu.ranks.commands import AddLora, Command, Compute, Drop, Load, Logits, ReleaseKv, RemoveLora, RestoreKv
from protocol.ids import Slot
from protocol.lora import LoraId
from protocol.parallel import ParallelSpec
from protocol.step import Row
from tests.helpers.thread_groups import run_ranks

THREE = ParallelSpec(tensor=3)
LONG = Compute([Row(Slot(0), 5, list(range(3 * FRAME_BYTES)), [1, 2], True)], [LoraId(7)])
COMMANDS = [
    Load(3, None),
    LONG,
    Drop(),
    Compute([Row(Slot(1), 0, [4], [9], False)]),
    Logits(12),
    AddLora(LoraId(2**60), [("a.b", (2, 3), (4, 2))]),
    RemoveLora(LoraId(3)),
    ReleaseKv(),
    RestoreKv(),
]


def test_commands_are_heard_as_they_were_told_and_in_their_order():
    def run(groups: Groups) -> list[Command]:
        commands = CommandGroup(groups.control)
        if not groups.leads:
            return [commands.hear() for _ in COMMANDS]
        for command in COMMANDS:
            commands.tell(command)
        return COMMANDS

    assert run_ranks(run, THREE) == [COMMANDS] * 3


@pytest.mark.parametrize("spare", [-1, 0, 1])
def test_a_command_that_just_fits_or_just_does_not_is_heard_whole(spare: int):
    empty = AddLora(LoraId(0), [("", (1, 1), (1, 1))])
    length = FRAME_BYTES - 8 - len(msgpack.encode(empty)) - 2 + spare  # two bytes more say how long a long name is
    command = AddLora(LoraId(0), [("n" * length, (1, 1), (1, 1))])
    assert len(msgpack.encode(command)) == FRAME_BYTES - 8 + spare

    def run(groups: Groups) -> Command:
        commands = CommandGroup(groups.control)
        if not groups.leads:
            return commands.hear()
        commands.tell(command)
        return command

    assert run_ranks(run, THREE) == [command] * 3


def test_all_hear_the_first_problem_and_whose_it_is():
    def run(groups: Groups) -> list[str | None]:
        commands = CommandGroup(groups.control)
        rank = groups.world.index
        long = "ä" * ANSWER_BYTES
        problems = [None, "no room" if rank == 2 else None, f"{rank} cannot", long if rank == 1 else None]
        return [commands.agree(problem) for problem in problems]

    expected = [None, "rank 2: no room", "0 cannot", "rank 1: " + "ä" * (ANSWER_BYTES // 2)]
    assert run_ranks(run, THREE) == [expected] * 3


def test_tensors_that_belong_to_a_command_are_shared():
    def run(groups: Groups) -> list[float]:
        x = torch.arange(6.0) if groups.leads else torch.empty(6)
        return CommandGroup(groups.control).share(x).tolist()

    assert run_ranks(run, THREE) == [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]] * 3
