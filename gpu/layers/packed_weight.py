"""A float32 matrix in the order that oneDNN computes with on this CPU, and the way of such a matrix between processes.

torch has no Python call that makes a tensor of this layout over memory that is there already; its C interface for
compiled models has one, as of version 2.3. Where that is missing, each process packs for itself. Used by layers/linear,
gpu/weights and gpu/tensor_ipc.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import attrs
import numpy as np
import torch


@attrs.frozen(eq=False)
class PackedWeight:
    """W [out, in] as oneDNN has it."""

    tensor: torch.Tensor
    """Opaque: only of use to oneDNN's own operators."""
    memory: np.ndarray | None = None
    """What it lies in, [bytes] uint8, which must live as long; None if it owns its memory."""


def can_pack(weight: torch.Tensor) -> bool:
    """Whether `pack` takes it: float32 on a CPU. (oneDNN is slow in half precision on CPUs without support.)"""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available()


def pack(weight: torch.Tensor) -> PackedWeight:
    """A copy of W [out, in] in oneDNN's order."""
    return PackedWeight(torch.ops.mkldnn._reorder_linear_weight(weight))


def can_map_packed() -> bool:
    """Whether `packed_over` works with this torch."""
    return _interface() is not None


def packed_bytes(weight: PackedWeight) -> np.ndarray:
    """The memory of a packed weight, [bytes] uint8: a view, to be used while `weight` lives."""
    address, nbytes = torch.ops.mkldnn.data_ptr(weight.tensor), torch.ops.mkldnn._nbytes(weight.tensor)
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


def packed_metadata(weight: PackedWeight) -> bytes:
    """oneDNN's description of the order: with the bytes and the shape, all that there is to it."""
    return torch.ops.mkldnn._get_mkldnn_serialized_md(weight.tensor).numpy().tobytes()


def packed_over(memory: np.ndarray, shape: Sequence[int], metadata: bytes) -> PackedWeight:
    """The packed weight whose bytes `memory` holds, [bytes] uint8; nothing is copied or written.

    Raises ValueError if torch does not take the description.
    """
    library = _interface()
    assert library is not None, "to be asked of can_map_packed first"
    rows, columns = shape
    handle = ctypes.c_void_p()
    failed = library.aoti_torch_create_tensor_from_blob_v2(
        memory.ctypes.data,
        2,
        (ctypes.c_int64 * 2)(rows, columns),
        (ctypes.c_int64 * 2)(columns, 1),
        0,
        library.aoti_torch_dtype_float32(),
        library.aoti_torch_device_type_cpu(),
        0,
        ctypes.byref(handle),
        library.aoti_torch_layout__mkldnn(),
        metadata,
        len(metadata),
    )
    if failed:
        raise ValueError(f"torch takes no packed weight of shape {[rows, columns]} from {len(metadata)} bytes")
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return PackedWeight(torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(capsule(handle, None, None)), memory)


@cache
def _interface() -> ctypes.CDLL | None:
    """libtorch's C functions with the types of those that are called here; None if it lacks one."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        create = library.aoti_torch_create_tensor_from_blob_v2
        for number in (
            library.aoti_torch_dtype_float32,
            library.aoti_torch_device_type_cpu,
            library.aoti_torch_layout__mkldnn,
        ):
            number.restype, number.argtypes = ctypes.c_int32, []
        assert torch.ops.mkldnn._get_mkldnn_serialized_md is not None
        assert torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr is not None
    except (OSError, AttributeError):
        return None
    create.restype = ctypes.c_int32
    create.argtypes = [
        *(ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_int64)),
        *(ctypes.c_int64, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)),
        *(ctypes.c_int32, ctypes.c_char_p, ctypes.c_int64),
    ]
    return library
