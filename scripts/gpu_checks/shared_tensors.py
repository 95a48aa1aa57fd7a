"""A tensor in other processes: the same bytes, also after one of those that hold it was killed.

On a GPU by CUDA's handles, where the others count the cards the other way round; on a CPU by a memfd.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

from gpu.cards import VISIBLE, cards_of
from gpu.tensor_ipc import TensorIpcSender
from protocol.tensors import PackedTensor
from scripts.gpu_checks.numerics import Finding
from scripts.gpu_checks.task import ProcessFailedError, Receive, answers_of, open_tasks
from scripts.gpu_checks.task_process import digest

SIZE = (1000, 513)


def check_shared_tensors(dtype: torch.dtype, device: torch.device, directory: Path) -> Iterator[Finding]:
    tensor = torch.randn(SIZE, generator=torch.Generator().manual_seed(2)).to(device, dtype)
    expected = digest(tensor)
    sender = TensorIpcSender("gpu-check")
    try:
        for name in ("a tensor in another process", "… in the next one, after that was killed"):
            handle = sender.share(tensor)
            assert not isinstance(handle, PackedTensor), "it is a plain one"
            place = directory / f"receiver-{len(list(directory.iterdir()))}"
            place.mkdir()
            try:
                with open_tasks([Receive(handle)], place, other_way_round(device)) as processes:
                    (answer,) = answers_of(processes, processes)
                yield Finding(name, float(answer.digests["tensor"] != [expected]), 0.0)
            except ProcessFailedError as error:
                yield Finding(name, float("nan"), 0.0, str(error))
        yield Finding("… and here, after both", float(digest(tensor) != expected), 0.0)
    finally:
        sender.close()


def other_way_round(device: torch.device) -> dict[str, str]:
    """Variables under which a process counts the GPUs so."""
    count = torch.cuda.device_count() if device.type == "cuda" else 0
    if count < 2:
        return {}
    return {VISIBLE: ",".join(reversed(cards_of(0, 0, 1, count, count, os.environ.get(VISIBLE))))}
