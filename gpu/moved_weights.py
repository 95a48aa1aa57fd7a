"""A GPU's weights in the host's memory while an engine sleeps. Used by gpu/torch_runner on level 1.

The tensors stay the objects that they are, so that nothing that holds one has to learn of it: only their memory on the
device goes away and comes back, at another address.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import final

import attrs
import torch


@final
class MovedWeights:
    """Made by giving the device's memory back."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        """Tensors may share memory, each of which is moved once."""
        storages = {s.data_ptr(): s for tensor in tensors if (s := tensor.untyped_storage()).nbytes() > 0}
        self._kept = [(storage, storage.cpu() if storage.is_cuda else storage.clone()) for storage in storages.values()]
        self.num_bytes = sum(kept.nbytes() for _, kept in self._kept)
        for storage, _ in self._kept:
            storage.resize_(0)

    def restore(self) -> None:
        """Back to the device, all of them: raises torch's RuntimeError, and holds nothing there, where it has no room
        any more."""
        try:
            for storage, kept in self._kept:
                storage.resize_(kept.nbytes())
                storage.copy_(kept)
        except RuntimeError:
            for storage, _ in self._kept:
                storage.resize_(0)
            raise
        self._kept = []


def tensors_in(part: object) -> Iterator[torch.Tensor]:
    """Every tensor of a model that is put together from our own classes, lists and dictionaries. What ranks exchange
    tensors through is none of it."""
    if isinstance(part, torch.Tensor):
        yield part
    elif isinstance(part, Mapping):
        for value in part.values():
            yield from tensors_in(value)
    elif isinstance(part, list | tuple | set | frozenset):
        for value in part:
            yield from tensors_in(value)
    elif attrs.has(kind := type(part)):
        for field in attrs.fields(kind):
            yield from tensors_in(getattr(part, field.name))
    elif _is_ours(kind.__module__) and hasattr(part, "__dict__"):
        yield from tensors_in(vars(part))


def _is_ours(module: str) -> bool:
    return module.startswith("gpu.") and not module.startswith("gpu.groups.")
