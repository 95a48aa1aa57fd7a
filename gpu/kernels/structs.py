"""The records of src/operations.h, src/matrix.h and src/activations.h for ctypes, field by field. Used by library and
gpu/models/native_decoder. Addresses are plain numbers: whoever fills them in keeps the memory alive.
"""

from __future__ import annotations

import ctypes
import enum
from ctypes import c_float, c_int32, c_void_p


class Kind(enum.IntEnum):
    """Which operation a record is."""

    EMBED = 0
    ANGLES = 1
    NORM = 2
    QUANTISE = 3
    LINEAR = 4
    ROTATE = 5
    ATTEND = 6
    GATE = 7
    LORA = 8


class Quantised(ctypes.Structure):
    _fields_ = [("coarse", c_void_p), ("fine", c_void_p)]


COARSE_BLOCK_BYTES, FINE_BLOCK_BYTES = 48, 80
"""Bytes of 32 quantised activations with their scale and sums."""
PANEL_TOKENS = 16
"""Quantised rows have memory for a multiple of so many tokens."""


class Matrix(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("format", c_int32), ("rows", c_int32), ("columns", c_int32)]


class Span(ctypes.Structure):
    _fields_ = [("first_token", c_int32), ("tokens", c_int32), ("start", c_int32), ("first_block", c_int32)]


class Step(ctypes.Structure):
    _fields_ = [
        ("tokens", c_int32),
        ("spans", c_int32),
        ("tasks", c_int32),
        ("block_size", c_int32),
        ("token_ids", c_void_p),
        ("span", c_void_p),
        ("span_of", c_void_p),
        ("blocks", c_void_p),
        ("task", c_void_p),
        ("adapted", c_void_p),
        ("num_adapted", c_int32),
    ]


class Embed(ctypes.Structure):
    _fields_ = [("kind", c_int32), ("table", Matrix), ("into", c_void_p)]


class Angles(ctypes.Structure):
    _fields_ = [
        ("kind", c_int32),
        ("pairs", c_int32),
        ("frequencies", c_void_p),
        ("factor", c_float),
        ("cos", c_void_p),
        ("sin", c_void_p),
    ]


class Norm(ctypes.Structure):
    _fields_ = [
        ("kind", c_int32),
        ("size", c_int32),
        ("x", c_void_p),
        ("weight", c_void_p),
        ("eps", c_float),
        ("into", c_void_p),
        ("quantised", Quantised),
    ]


class Quantise(ctypes.Structure):
    _fields_ = [("kind", c_int32), ("size", c_int32), ("x", c_void_p), ("quantised", Quantised)]


class LinearInput(ctypes.Structure):
    _fields_ = [("x", c_void_p), ("quantised", Quantised)]


class LinearOutput(ctypes.Structure):
    _fields_ = [("y", c_void_p), ("stride", c_int32), ("accumulate", c_int32), ("bias", c_void_p)]


class Linear(ctypes.Structure):
    _fields_ = [("kind", c_int32), ("weight", Matrix), ("input", LinearInput), ("output", LinearOutput)]


class Heads(ctypes.Structure):
    _fields_ = [("heads", c_int32), ("kv_heads", c_int32), ("head_dim", c_int32)]


class Cache(ctypes.Structure):
    _fields_ = [("keys", c_void_p), ("values", c_void_p)]


class Rotate(ctypes.Structure):
    _fields_ = [
        ("kind", c_int32),
        ("heads", Heads),
        ("qkv", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("eps", c_float),
        ("cache", Cache),
    ]


class Attend(ctypes.Structure):
    _fields_ = [
        ("kind", c_int32),
        ("heads", Heads),
        ("qkv", c_void_p),
        ("into", c_void_p),
        ("window", c_int32),
        ("cache", Cache),
    ]


class Gate(ctypes.Structure):
    _fields_ = [
        ("kind", c_int32),
        ("size", c_int32),
        ("gate_up", c_void_p),
        ("into", c_void_p),
        ("quantised", Quantised),
    ]


class LowRank(ctypes.Structure):
    _fields_ = [("a", Matrix), ("b", Matrix)]


MAX_PROJECTIONS = 3


class Lora(ctypes.Structure):
    _fields_ = [
        ("kind", c_int32),
        ("projections", c_int32),
        ("columns", c_int32),
        ("x", c_void_p),
        ("y", c_void_p),
        ("stride", c_int32),
        ("first_row", c_int32 * MAX_PROJECTIONS),
        ("max_rank", c_int32),
        ("between", c_void_p),
        ("low_ranks", c_void_p),
    ]


Operation = Embed | Angles | Norm | Quantise | Linear | Rotate | Attend | Gate | Lora
