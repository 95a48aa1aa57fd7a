"""What torch does when it shares a CUDA tensor between processes, as four plain calls. Used by gpu/tensor_ipc.

torch.multiprocessing does the same behind pickle. No GPU has run this yet: tests put stand-ins for `CudaCalls`.
"""

from __future__ import annotations

from typing import Protocol

import torch

from protocol.errors import StartError

Exported = tuple[int, bytes, int, int, bytes, int, bytes, bool]
"""What torch.UntypedStorage._share_cuda_ gives: device, handle, size and offset of the storage in bytes, handle and
offset of its reference counter, handle of an event, and whether that is to be waited for."""


class CudaCalls(Protocol):
    """The seam between the messages and the driver."""

    def export(self, storage: torch.UntypedStorage) -> Exported:
        """Takes a reference that whoever opens it gives back. One call for each one who is to open it."""

    def open(self, index: int, exported: Exported) -> torch.UntypedStorage:
        """The same memory in another process than the maker's."""

    def uuid(self, index: int) -> str:
        """Which card this process counts as `index`."""

    def index(self, uuid: str) -> int:
        """Raises StartError if this process does not see the card."""


class TorchCuda:
    """The real one."""

    def export(self, storage: torch.UntypedStorage) -> Exported:
        return storage._share_cuda_()

    def open(self, index: int, exported: Exported) -> torch.UntypedStorage:
        torch.cuda.init()
        return torch.UntypedStorage._new_shared_cuda(index, *exported[1:])

    def uuid(self, index: int) -> str:
        return str(torch.cuda.get_device_properties(index).uuid)

    def index(self, uuid: str) -> int:
        for index in range(torch.cuda.device_count()):
            if self.uuid(index) == uuid:
                return index
        raise StartError(f"this process does not see the GPU {uuid}, whose memory it is to map")
