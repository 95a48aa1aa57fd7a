"""Frames as nobody of ours sends them: noise, and messages with something wrong in their bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence

HUGE = [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"]
"""msgpack's heads of a list, a map, a text and bytes, of four thousand million."""
DEEP = [b"\x91" * 5000 + b"\x01", b"\x81\x01" * 5000 + b"\x01"]
ODD = [b"\xc1", b"\xa2\xff\xfe", b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00", b"\xcf" + b"\xff" * 8, b"\xd6\xff\0\0\0\0"]
"""Never used; text that is not UTF-8; NaN; the largest integer; a time."""


def garbled(frames: Sequence[bytes], seed: int) -> bytes:
    """One frame, always the same for the same seed: most are a message of `frames` that was damaged."""
    chance = random.Random(seed)
    frame = bytearray(chance.choice(frames))
    match chance.randrange(8):
        case 0:
            return chance.randbytes(chance.randrange(200))
        case 1:
            return bytes(frame[: chance.randrange(len(frame))])
        case 2 | 3:
            for _ in range(chance.randint(1, 8)):
                at = chance.randrange(len(frame))
                frame[at] ^= 1 << chance.randrange(8)
        case 4 | 5:
            at = chance.randrange(len(frame))
            frame[at : at + chance.randrange(10)] = chance.choice([*HUGE, *DEEP, *ODD])
        case 6:
            other = chance.choice(frames)
            frame = frame[: chance.randrange(len(frame))] + other[chance.randrange(len(other)) :]
        case 7:
            # One more field than there is: what a decoder skips, it still has to walk through.
            if 0x90 <= frame[0] < 0x9F:
                frame[0] += 1
            frame += chance.choice([*HUGE, *DEEP, *ODD])
    return bytes(frame)
