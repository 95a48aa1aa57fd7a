"""One checkpoint's weights into memory, or a file, that engines map: by the rules by which an engine would load it.

Used by gpu/weights_host. On a GPU each engine loads for itself: see gpu/tensor_ipc for what would carry such tensors.
"""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from pathlib import Path

import torch

from gpu.config import ModelConfig
from gpu.kernels.laid_out import make_laid_out, write_laid_out
from gpu.kernels.laid_out_file import files_digest
from gpu.load_model import INT8, NativeChoice, choose_native, pick_device, pick_dtype
from gpu.load_report import Report, enter
from gpu.memory_file import MemoryFile
from gpu.models.decoder import Decoder
from gpu.shared_loader import SharingLoader, table_key
from gpu.tensor_ipc import TensorIpcSender
from gpu.weights import WeightSource, open_weights
from protocol.errors import UnknownVariantError
from protocol.phases import COMPILE, LAY_OUT, LOAD
from protocol.spec import EngineSpec, SharedWeights
from protocol.tensors import FileTensor

logger = logging.getLogger("trillm.weights")


def share_checkpoint(spec: EngineSpec, report: Report, kept: ExitStack) -> SharedWeights | None:
    """None for what engines load by themselves: on GPUs, and by transformers' code. `kept` is given what has to live.

    Raises CheckpointError and StartError as gpu.load_model.load_model does, OSError where there is no memory for it.
    """
    torch.set_num_threads(1)
    if pick_device(spec.device).type != "cpu" or spec.quantization is not None:
        return None
    if spec.parallel.tensor > 1:
        return None  # each rank has another part of every matrix, and all of them together one copy
    try:
        config = ModelConfig.read(Path(spec.checkpoint)).for_length(spec.max_model_len)
    except UnknownVariantError:
        return None
    source = open_weights(Path(spec.checkpoint))
    if spec.dtype in ("auto", INT8):
        enter(report, COMPILE)
        if (choice := choose_native(spec, config, source)) is not None:
            enter(report, LAY_OUT)
            return _share_laid_out(spec, choice, source, report, kept)
        if spec.dtype == INT8:
            return None
    if spec.batch_invariant:
        return None  # the engine says why that is not to be had
    enter(report, LOAD)
    return _share_tensors(spec, config, source, report, kept)


def _share_laid_out(
    spec: EngineSpec, choice: NativeChoice, source: WeightSource, report: Report, kept: ExitStack
) -> SharedWeights:
    """A file in the cache, or the same in memory where that cannot be written."""
    stacks, lanes, path = choice.plan.stacks, choice.library.lanes, choice.path
    files = files_digest(source.files)
    if path is not None and make_laid_out(path, stacks, source, lanes, report):
        size = path.stat().st_size
        return SharedWeights(spec.checkpoint, size, laid_out=FileTensor(str(path), 0, [size], "uint8"), files=files)
    memory = MemoryFile("trillm-laid-out")
    kept.callback(memory.close)
    with os.fdopen(os.dup(memory.descriptor), "wb") as file:
        size = write_laid_out(file, stacks, source, lanes, report)
    memory.seal()
    return SharedWeights(spec.checkpoint, size, laid_out=FileTensor(memory.path, 0, [size], "uint8"), files=files)


def _share_tensors(
    spec: EngineSpec, config: ModelConfig, source: WeightSource, report: Report, kept: ExitStack
) -> SharedWeights:
    """What the model asks for while it is put together here."""
    dtype = pick_dtype(spec.dtype, config.dtype, torch.device("cpu"))
    sender = TensorIpcSender("trillm-weights")
    kept.callback(sender.close)
    loader = SharingLoader(source, dtype, report, sender)
    Decoder.load(config, loader)
    table = loader.finish(table_key(source, dtype))
    return SharedWeights(spec.checkpoint, sender.num_bytes, table=table)
