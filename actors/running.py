"""What is done with a process of an actor, wherever it runs: a child of ours (actors/process), or a rank that another
host keeps (actors/hosts/remote_rank). Used by records, incarnations and units."""

from __future__ import annotations

from typing import Protocol

from protocol.spec import FromChild, ToChild


class Running(Protocol):
    @property
    def pid(self) -> int: ...

    @property
    def ended_by_us(self) -> bool: ...

    async def send(self, message: ToChild) -> None:
        """Raises trio.BrokenResourceError when it is gone."""

    async def receive(self) -> FromChild:
        """Raises trio.EndOfChannel when it is gone or about to be."""

    async def wait(self) -> int:
        """Until it has ended."""

    def describe_end(self) -> str:
        """How, in words for the operator."""

    def ended_from_outside(self) -> bool:
        """Whether it has ended for nothing that it has done."""

    def is_alive(self) -> bool: ...

    def is_cut_off(self) -> bool:
        """Whether nothing can be heard of it now, however it is."""

    def ask_for_stacks(self) -> bool:
        """Have it write to its log where its threads are; False if it cannot."""

    def kill(self) -> None: ...
