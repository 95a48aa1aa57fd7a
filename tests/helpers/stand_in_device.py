"""The GPU path on a CPU: stand-ins for the two things that only a GPU has, around the real rest of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import torch

from gpu.config import ModelConfig
from gpu.cuda_model import DeviceParts, cuda_model
from gpu.flashinfer_attention import FlashInfer
from gpu.kv_pool import kv_pool_size
from gpu.models.decoder import Decoder
from gpu.torch_model import TorchModel
from gpu.varlen_attention import VarlenFunction
from gpu.weights import WeightLoader, open_weights
from protocol.ids import EngineIndex, Epoch
from protocol.kv import KvLayout
from protocol.spec import EngineFacts, EngineSpec
from scripts.gpu_checks.without_gpu import varlen_attention
from tests.helpers.tiny_checkpoints import HIDDEN_SIZE, VOCAB_SIZE

CPU = torch.device("cpu")


@attrs.define(eq=False)
class Recorder:
    """A gpu.graphs.Capture that remembers the function and calls it again, into memory that stays the same."""

    recorded: int = 0
    replayed: int = 0

    def __call__(self, run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        self.recorded += 1
        out = run().clone()

        def replay() -> torch.Tensor:
            self.replayed += 1
            return out.copy_(run())

        return replay


def without_pages(*args: object, block_table: torch.Tensor | None, **kwargs: object) -> torch.Tensor:
    """As FlashAttention 2."""
    if block_table is not None:
        raise RuntimeError("block tables need another implementation")
    return varlen_attention(*args, block_table=None, **kwargs)


def device_spec(checkpoint: Path, **changes: object) -> EngineSpec:
    sizes = {"block_size": 4, "num_gpu_blocks_override": 120, "max_num_seqs": 4, "max_model_len": 64} | changes
    return EngineSpec(EngineIndex(0), Epoch(1), "", {}, str(checkpoint), **sizes)


def device_model(
    checkpoint: Path,
    varlen: VarlenFunction = varlen_attention,
    capture: Callable[[Callable[[], torch.Tensor]], Callable[[], torch.Tensor]] | None = None,
    dtype: torch.dtype = torch.float32,
    compiler: str | None = None,
    flashinfer: FlashInfer | None = None,
    **changes: object,
) -> TorchModel:
    torch.set_num_threads(1)  # the tensors are tiny, and threads would wait for each other
    spec = device_spec(checkpoint, **changes)
    with torch.inference_mode():
        config = ModelConfig.read(checkpoint)
        decoder = Decoder.load(config, WeightLoader(open_weights(checkpoint), dtype, CPU, lambda _: None))
        size = kv_pool_size(spec, config, dtype, 2**30, 2**30)
        return cuda_model(
            spec, config, decoder, size, 0, DeviceParts(varlen, capture or Recorder(), compiler, flashinfer)
        )


def device_facts(model: TorchModel) -> EngineFacts:
    """Of a model with the sizes that `device_spec` has if it is told nothing else."""
    layout = KvLayout(b"stand-in", 4, model.block_bytes)
    return EngineFacts(64, 120, 4, VOCAB_SIZE, "cpu", "float32", 0, 0, HIDDEN_SIZE, layout)
