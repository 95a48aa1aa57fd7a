"""The way from the leading rank to the others: commands as bytes, and what all ranks say of how one went.

It goes by the ranks' own group and not over sockets: where they share memory a command is there in some microseconds,
in the thread that computes, which need not ask the event loop's thread for the interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

import msgspec
import torch

from gpu.groups.group import Group
from gpu.ranks.commands import Command
from protocol.errors import RankLostError

FRAME_BYTES = 4096
"""What is always sent. A longer command's rest comes in a second piece."""
HEADER_BYTES = 8
ANSWER_BYTES = 512
"""Of the sentence in which a rank says what went wrong."""


@final
class CommandGroup:
    """Of one rank. All make the same calls in the same order, but that the first tells where the others hear."""

    def __init__(self, group: Group) -> None:
        """`group` has no limit to waiting: there may be nothing to do for days."""
        self._group = group
        self.is_lost = False
        """Of the first rank: another one is gone, and nobody is told anything any more."""
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Command)

    @contextmanager
    def told(self, command: Command) -> Iterator[None]:
        """Of the first rank: tell it, and do its own part of it within. Whatever raises RankLostError: this process
        has to end."""
        assert not self.is_lost, "a rank is lost, and the engine with it"
        try:
            self.tell(command)
            yield
        except RankLostError:
            self.is_lost = True
            raise

    def tell(self, command: Command) -> None:
        """Of the first rank. May return before the others have heard it."""
        content = self._encoder.encode(command)
        frame = bytearray(FRAME_BYTES)
        frame[:HEADER_BYTES] = len(content).to_bytes(HEADER_BYTES, "little")
        begun = content[: FRAME_BYTES - HEADER_BYTES]
        frame[HEADER_BYTES : HEADER_BYTES + len(begun)] = begun
        self._group.broadcast(torch.frombuffer(frame, dtype=torch.uint8))
        if len(begun) < len(content):
            self._group.broadcast(torch.frombuffer(bytearray(content[len(begun) :]), dtype=torch.uint8))

    def hear(self) -> Command:
        """Of the other ranks: the next command, whenever it comes."""
        frame = bytearray(FRAME_BYTES)
        self._group.broadcast(torch.frombuffer(frame, dtype=torch.uint8))
        length = int.from_bytes(frame[:HEADER_BYTES], "little")
        content = bytes(frame[HEADER_BYTES : HEADER_BYTES + length])
        if len(content) < length:
            rest = bytearray(length - len(content))
            self._group.broadcast(torch.frombuffer(rest, dtype=torch.uint8))
            content += rest
        return self._decoder.decode(content)

    def share(self, x: torch.Tensor) -> torch.Tensor:
        """What the first rank gave, in `x`'s memory, which is the host's."""
        return self._group.broadcast(x)

    def agree(self, problem: str | None) -> str | None:
        """Of all ranks, when each has done its part or has not: what went wrong, in a sentence of the first that has
        one."""
        mine = bytearray(ANSWER_BYTES)
        text = (problem or "").encode()[:ANSWER_BYTES]
        mine[: len(text)] = text
        answers = self._group.all_gather(torch.frombuffer(mine, dtype=torch.uint8).unsqueeze(0))
        for rank, answer in enumerate(answers):
            if told := bytes(answer.tolist()).rstrip(b"\0").decode(errors="ignore"):
                return told if rank == 0 else f"rank {rank}: {told}"
        return None
