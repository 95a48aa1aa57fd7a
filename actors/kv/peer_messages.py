"""What connectors say to each other once they have greeted (actors/kv/greeting.py): who reads asks, who owns answers.

One question at a time, each with a number that its answers repeat, so that what a broken peer says twice is noticed.
The owner remembers what it has lent on a connection: a reader never names a frame.
"""

from __future__ import annotations

import msgspec

from actors.kv.lending import FetchError
from actors.kv.transports.nixl_messages import Agent
from protocol.kv import BlockHash

MAX_MESSAGE_BYTES = 4 << 20
MAX_BLOCKS = 32_768
"""Of one lease that are asked for at once."""
NOT_READ = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading raises of what somebody else has written; the last for lists in lists, where nobody looks for any."""


class Get(msgspec.Struct, frozen=True, array_like=True, tag="GET"):
    """Lend the first of these blocks, as many as the lease has. Answered by LentBlocks or Gone."""

    number: int
    lease_id: str
    hashes: list[BlockHash]


class OpenWindow(msgspec.Struct, frozen=True, array_like=True, tag="WINDOW"):
    """Answered by OpenedWindow, and with it the window's descriptor (actors/kv/transports/shm.py)."""

    number: int


class OpenAgent(msgspec.Struct, frozen=True, array_like=True, tag="AGENT"):
    """We are about to read by NIXL. Answered by OpenedAgent (actors/kv/transports/nixl.py)."""

    number: int


class SendBlocks(msgspec.Struct, frozen=True, array_like=True, tag="SEND"):
    """The first of what was lent. Answered by Batches (actors/kv/transports/tcp.py)."""

    number: int
    num_blocks: int


class Extend(msgspec.Struct, frozen=True, array_like=True, tag="EXTEND"):
    """We are at it. Without an answer."""


class Confirm(msgspec.Struct, frozen=True, array_like=True, tag="CONFIRM"):
    """Whether the first of what was lent has lain there all the time. Answered by Confirmed."""

    number: int
    num_blocks: int


class GiveBack(msgspec.Struct, frozen=True, array_like=True, tag="BACK"):
    """What was lent is not needed any more, by anybody. Without an answer."""


Question = Get | OpenWindow | OpenAgent | SendBlocks | Extend | Confirm | GiveBack


class LentBlocks(msgspec.Struct, frozen=True, array_like=True, tag="LENT"):
    number: int
    frames: list[int]
    num_frames: int
    """Of the owner's window."""
    lease_seconds: float
    """After which it is over, unless it is extended."""


class Gone(msgspec.Struct, frozen=True, array_like=True, tag="GONE"):
    """There is no such lease any more."""

    number: int


class OpenedWindow(msgspec.Struct, frozen=True, array_like=True, tag="OPENED"):
    number: int
    problem: str | None
    """Why no descriptor follows."""


class OpenedAgent(msgspec.Struct, frozen=True, array_like=True, tag="NIXL"):
    """Whatever is asked next, but for Extend, says that the reading is over."""

    number: int
    agent: Agent | None
    """None: there is none."""


class Batch(msgspec.Struct, frozen=True, array_like=True, tag="BATCH"):
    """The bytes of so many frames follow."""

    number: int
    checksums: list[int]
    """Of each frame, XXH3-64. None: the lease is over, and nothing follows any more."""


class Confirmed(msgspec.Struct, frozen=True, array_like=True, tag="CONFIRMED"):
    number: int
    holds: bool


Answer = LentBlocks | Gone | OpenedWindow | OpenedAgent | Batch | Confirmed

_QUESTION = msgspec.msgpack.Decoder(Question)
_ANSWER = msgspec.msgpack.Decoder(Answer)
encode = msgspec.msgpack.Encoder().encode


def read_question(message: bytearray) -> Question:
    """Raises FetchError."""
    try:
        return _QUESTION.decode(message)
    except NOT_READ as error:
        raise FetchError("broken", f"the other connector asks what is no question: {error}") from error


def read_answer(message: bytearray) -> Answer:
    """Raises FetchError."""
    try:
        return _ANSWER.decode(message)
    except NOT_READ as error:
        raise FetchError("broken", f"the other connector answers what is no answer: {error}") from error
