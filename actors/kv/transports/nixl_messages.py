"""What a connector and its NIXL process say to each other (actors/kv/transports/nixl_life.py, nixl_process.py), each
message with its length in front, as actors/kv/wire.py has them."""

from __future__ import annotations

import struct

import msgspec

LENGTH = struct.Struct("!I")
MAX_MESSAGE_BYTES = 4 << 20


class Agent(msgspec.Struct, frozen=True, array_like=True, tag="AGENT"):
    """Of one NIXL process: all that another one needs to read its window."""

    metadata: bytes
    """As NIXL makes and reads it. It has a random name in it, so that it is never that of another one."""
    address: int
    """Where the window lies in its memory."""


class Read(msgspec.Struct, frozen=True, array_like=True, tag="READ"):
    """Frames of another window into frames of ours. Answered by Done or Failed."""

    number: int
    owner: Agent
    sources: list[int]
    frames: list[int]


class Attend(msgspec.Struct, frozen=True, array_like=True, tag="ATTEND"):
    """Whether somebody reads from us just now. Not every device does that without our process."""

    is_read: bool


class Started(msgspec.Struct, frozen=True, array_like=True, tag="STARTED"):
    """The window is registered."""

    agent: Agent


class NoAgent(msgspec.Struct, frozen=True, array_like=True, tag="NONE"):
    """The process ends: NIXL cannot be used."""

    reason: str


class Done(msgspec.Struct, frozen=True, array_like=True, tag="DONE"):
    """All has been written."""

    number: int


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="FAILED"):
    number: int
    reason: str
    was_begun: bool
    """Something may have been written, and may still be as long as the process lives."""


ToProcess = Read | Attend
FromProcess = Started | NoAgent | Done | Failed

TO_PROCESS = msgspec.msgpack.Decoder(ToProcess)
FROM_PROCESS = msgspec.msgpack.Decoder(FromProcess)
encode = msgspec.msgpack.Encoder().encode
