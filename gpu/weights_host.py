"""What the weights actor does: find, or make, what engines map of each checkpoint, and keep it. Used by actors/weights.

Where the CPU kernels' laid-out file is there already, nothing is left to do and torch is not imported: a file in the
cache is kept by the system.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path
from typing import Self, final

from gpu.draft_spec import draft_spec
from gpu.kernels.build import find_library
from gpu.kernels.laid_out_file import files_digest, laid_out_directory, laid_out_path, read_index
from gpu.kernels.library import KernelLibrary
from gpu.load_report import Report, enter, part_of
from gpu.weight_files import weight_files
from protocol.errors import CheckpointError
from protocol.phases import IMPORT
from protocol.spec import EngineSpec, SharedWeights, WeightsFacts
from protocol.tensors import FileTensor

logger = logging.getLogger("trillm.weights")


@final
class WeightsHost:
    """Holds what it shares until it is left."""

    def __init__(self, spec: EngineSpec) -> None:
        """`spec` is what the engines are started with."""
        draft = draft_spec(spec)
        self._specs = [spec] if draft is None else [spec, draft]
        self._kept = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._kept.close()

    def share(self, report: Report) -> WeightsFacts:
        """Everything that engines of this spec can map. Raises CheckpointError for what none of them could load."""
        shares = []
        for done, spec in enumerate(self._specs):
            share = find_laid_out(spec) or self._make(spec, self._part_of(report, done))
            if share is not None:
                shares.append(share)
        report(1.0)
        return WeightsFacts(shares)

    def _part_of(self, report: Report, done: int) -> Report:
        return part_of(report, lambda part: (done + part) / len(self._specs))

    def _make(self, spec: EngineSpec, report: Report) -> SharedWeights | None:
        enter(report, IMPORT)
        from gpu.weights_sharing import share_checkpoint  # imports torch

        try:
            return share_checkpoint(spec, report, self._kept)
        except OSError as error:
            logger.warning("each engine loads %s by itself: %s", Path(spec.checkpoint).name, error.strerror or error)
            return None


def find_laid_out(spec: EngineSpec) -> SharedWeights | None:
    """The laid-out file, if this spec's engines would map one and it is there and whole."""
    directory = laid_out_directory(Path(spec.checkpoint), spec.cache_directory)
    if spec.parallel.world > 1:
        return None
    if spec.dtype not in ("auto", "int8") or spec.block_size % 16 or directory is None or spec.cache_directory is None:
        return None
    built = find_library(Path(spec.cache_directory))
    if built is None:
        return None
    try:
        files = weight_files(Path(spec.checkpoint))
        path, made_of = laid_out_path(directory, files, KernelLibrary(built).lanes), files_digest(files)
        with path.open("rb") as file:
            index = read_index(file)
    except (OSError, CheckpointError):
        return None  # who needs it will say what is wrong
    if index is None:
        return None
    laid_out = FileTensor(str(path), 0, [index.size], "uint8")
    return SharedWeights(spec.checkpoint, index.size, laid_out=laid_out, files=made_of)
