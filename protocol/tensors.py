"""How one process tells another where a tensor lies, so that it is mapped and not copied. Typed fields, no pickle.

Made and opened by gpu/tensor_ipc, carried by protocol/spec.WeightsFacts.
"""

from __future__ import annotations

import msgspec


class FileTensor(msgspec.Struct, frozen=True, tag="file"):
    """A contiguous tensor in a file: of the file system, or without a name as /proc/PID/fd/N of the one who made it."""

    path: str
    offset: int
    """In bytes."""
    shape: list[int]
    dtype: str
    """torch's name without the prefix: "float32", "uint8", …"""


class PackedTensor(msgspec.Struct, frozen=True, tag="packed"):
    """A float32 matrix in a file, in the order that oneDNN has chosen for it on this machine."""

    path: str
    offset: int
    """In bytes."""
    nbytes: int
    shape: list[int]
    """[out, in] of the matrix that was packed."""
    metadata: bytes
    """oneDNN's description of the order."""


class CudaTensor(msgspec.Struct, frozen=True, tag="cuda"):
    """A tensor in a GPU's memory: what torch.multiprocessing.reductions.rebuild_cuda_tensor takes, field by field.

    The one who made it must live, and keep the tensor, for as long as others have it mapped.
    """

    shape: list[int]
    stride: list[int]
    storage_offset: int
    """Of the tensor in its storage, in elements."""
    dtype: str
    device_index: int
    """As the maker counts; `device_uuid` says which card that is, since CUDA_VISIBLE_DEVICES may differ."""
    device_uuid: str
    storage_handle: bytes
    """Of the whole block that cudaMalloc gave."""
    storage_size_bytes: int
    storage_offset_bytes: int
    """Of the storage in that block."""
    ref_counter_handle: bytes
    ref_counter_offset: int
    event_handle: bytes
    event_sync_required: bool


TensorHandle = FileTensor | PackedTensor | CudaTensor
