"""Tensors from one process to others without a copy: the sender says in a message where each lies, receivers map it.

Used for weights (gpu/weights_sharing, gpu/shared_loader). On a CPU the memory is a memfd, which outlives a sender that
dies for as long as somebody maps it; a CUDA tensor lives and dies with its sender.
"""

from __future__ import annotations

import mmap
import os
import warnings
from typing import assert_never, final

import numpy as np
import torch

from gpu.cuda_ipc import CudaCalls, TorchCuda
from gpu.layers.packed_weight import PackedWeight, packed_bytes, packed_metadata, packed_over
from gpu.memory_file import MemoryFile
from protocol.tensors import CudaTensor, FileTensor, PackedTensor, TensorHandle

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float32, torch.bfloat16, torch.float16, torch.float64),
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
    )
}


@final
class TensorIpcSender:
    """Holds what it has shared until it is closed. Not to be used by two threads at a time."""

    def __init__(self, name: str, cuda: CudaCalls | None = None) -> None:
        self.num_bytes = 0
        """Of all that was shared."""
        self._memory = MemoryFile(name)
        self._cuda = cuda or TorchCuda()
        self._kept: list[torch.Tensor] = []

    def share(self, value: torch.Tensor | PackedWeight) -> TensorHandle:
        """On a CPU: copied once, into memory that others map. On a GPU nothing is copied, and the tensor is kept; each
        receiver needs a handle of its own. Raises OSError where there is no memory for it."""
        if isinstance(value, PackedWeight):
            data = packed_bytes(value)
            offset = self._append(data)
            return PackedTensor(
                self._memory.path, offset, data.nbytes, list(value.tensor.shape), packed_metadata(value)
            )
        if value.device.type == "cuda":
            return self._share_cuda(value)
        offset = self._append(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
        return FileTensor(self._memory.path, offset, list(value.shape), _name(value.dtype))

    def share_bytes(self, data: bytes) -> FileTensor:
        """Bytes beside the tensors, as a tensor [bytes] uint8."""
        return FileTensor(self._memory.path, self._append(np.frombuffer(data, dtype=np.uint8)), [len(data)], "uint8")

    def seal(self) -> None:
        """Nothing more is shared, and nobody can change what was."""
        self._memory.seal()

    def close(self) -> None:
        """Let go of everything. Idempotent."""
        self._memory.close()
        self._kept.clear()

    def _append(self, data: np.ndarray) -> int:
        self.num_bytes += data.nbytes
        return self._memory.append(data.data)

    def _share_cuda(self, tensor: torch.Tensor) -> CudaTensor:
        exported = self._cuda.export(tensor.untyped_storage())
        device, handle, size, offset, counter_handle, counter_offset, event_handle, event_sync = exported
        self._kept.append(tensor)
        self.num_bytes += tensor.nbytes
        return CudaTensor(
            shape=list(tensor.shape),
            stride=list(tensor.stride()),
            storage_offset=int(tensor.storage_offset()),
            dtype=_name(tensor.dtype),
            device_index=device,
            device_uuid=self._cuda.uuid(device),
            storage_handle=handle,
            storage_size_bytes=size,
            storage_offset_bytes=offset,
            ref_counter_handle=counter_handle,
            ref_counter_offset=counter_offset,
            event_handle=event_handle,
            event_sync_required=event_sync,
        )


@final
class TensorIpcReceiver:
    """Opens handles. What it gives keeps its memory mapped, with or without the receiver or a sender.

    Memory of a CPU is mapped read-only: writing to such a tensor ends the process.
    """

    def __init__(self, cuda: CudaCalls | None = None) -> None:
        self._files: dict[str, np.ndarray] = {}
        self._cuda = cuda or TorchCuda()

    def open(self, handle: TensorHandle) -> torch.Tensor | PackedWeight:
        """Raises OSError if its maker is gone, ValueError if the handle does not fit what is there, StartError for a
        GPU that is not seen here."""
        match handle:
            case FileTensor(path=path, offset=offset, shape=shape):
                dtype = _dtype(handle.dtype)
                data = self._bytes(path, offset, _count(shape) * dtype.itemsize)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)  # torch has no read-only tensors, and says so
                    return torch.from_numpy(data).view(dtype).view(shape)
            case PackedTensor(path=path, offset=offset, nbytes=nbytes, shape=shape, metadata=metadata):
                return packed_over(self._bytes(path, offset, nbytes), shape, metadata)
            case CudaTensor():
                return self._open_cuda(handle)
            case _:
                assert_never(handle)

    def read_bytes(self, handle: FileTensor) -> bytes:
        """A copy of what `share_bytes` shared. Raises as `open` does."""
        return self._bytes(handle.path, handle.offset, _count(handle.shape)).tobytes()

    def _bytes(self, path: str, offset: int, nbytes: int) -> np.ndarray:
        whole = self._files.get(path)
        if whole is None or offset + nbytes > len(whole):  # it may have grown
            whole = self._files[path] = _map(path)
        if not 0 <= offset <= offset + nbytes <= len(whole):
            raise ValueError(f"a tensor of {nbytes} bytes at {offset} of {path}, which has {len(whole)}")
        return whole[offset : offset + nbytes]

    def _open_cuda(self, handle: CudaTensor) -> torch.Tensor:
        index = self._cuda.index(handle.device_uuid)
        storage = self._cuda.open(
            index,
            (
                *(index, handle.storage_handle, handle.storage_size_bytes, handle.storage_offset_bytes),
                *(handle.ref_counter_handle, handle.ref_counter_offset),
                *(handle.event_handle, handle.event_sync_required),
            ),
        )
        tensor = torch.empty(0, dtype=_dtype(handle.dtype), device=storage.device)
        return tensor.set_(storage, handle.storage_offset, handle.shape, handle.stride)


def _map(path: str) -> np.ndarray:
    """The whole file, [bytes] uint8, read-only."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return np.frombuffer(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ), dtype=np.uint8)
    finally:
        os.close(descriptor)


def _count(shape: list[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _name(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    assert name in DTYPES, f"tensors of {dtype} are not shared"
    return name


def _dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise ValueError(f"data type {name!r} is none of {', '.join(DTYPES)}")
    return DTYPES[name]
