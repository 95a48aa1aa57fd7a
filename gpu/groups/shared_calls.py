"""The functions of gpu/kernels/src/shared_group.h as Python calls them. Used by shared_group and open."""

from __future__ import annotations

import ctypes
import enum
from ctypes import c_double, c_int, c_size_t, c_void_p
from typing import final

import torch

from gpu.kernels.library import KernelLibrary


class Outcome(enum.IntEnum):
    """How a call ended, as the source has it."""

    DONE = 0
    LATE = 1
    DEAD = 2
    LEFT = 3
    DIFFERENT = 4
    ELSEWHERE = 5


SUMMED = {
    torch.float32: 0,
    torch.float64: 1,
    torch.bfloat16: 2,
    torch.float16: 3,
    torch.int32: 4,
    torch.int64: 5,
}
"""Types of numbers that can be added up, as the source has them."""


@final
class SharedCalls:
    """Each call but `bytes`, `open`, `close` and `lost` gives an Outcome, and returns when this rank's part is done.
    Meanwhile the interpreter lock is released."""

    def __init__(self, kernels: KernelLibrary) -> None:
        library = kernels.loaded
        self.bytes = library.trillm_group_bytes
        self.bytes.argtypes, self.bytes.restype = [c_int], c_size_t
        self.open = library.trillm_open_group
        self.open.argtypes = [c_void_p, c_int, c_int, ctypes.POINTER(c_int), c_double, c_double]
        self.open.restype = c_void_p
        self.close = library.trillm_close_group
        self.close.argtypes, self.close.restype = [c_void_p], None
        self.lost = library.trillm_group_lost
        self.lost.argtypes, self.lost.restype = [c_void_p], c_int
        self.sum = library.trillm_group_sum
        self.sum.argtypes, self.sum.restype = [c_void_p, c_int, c_void_p, c_size_t], c_int
        self.gather = library.trillm_group_gather
        self.gather.argtypes, self.gather.restype = [c_void_p, c_void_p, c_void_p, c_size_t, c_size_t], c_int
        self.broadcast = library.trillm_group_broadcast
        self.broadcast.argtypes, self.broadcast.restype = [c_void_p, c_void_p, c_size_t, c_int], c_int
        self.send = library.trillm_group_send
        self.send.argtypes, self.send.restype = [c_void_p, c_void_p, c_size_t, c_int], c_int
        self.receive = library.trillm_group_receive
        self.receive.argtypes, self.receive.restype = [c_void_p, c_void_p, c_size_t, c_int], c_int
