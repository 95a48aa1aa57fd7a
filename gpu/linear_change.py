"""What a spec makes of a model's linears on its device: 8-bit weights, results that depend on no batch, or nothing.

Used by gpu/load_model. What cannot be had here is refused by name before any weight is read.
"""

from __future__ import annotations

import torch

from gpu.layers.fixed_rows import FixedRowsLinear
from gpu.layers.fp8 import ALIGNMENT, Fp8Linear
from gpu.layers.linear import Linear, PlainLinear
from protocol.errors import StartError
from protocol.spec import EngineSpec

FP8 = "fp8"
FP8_CAPABILITY = (9, 0)
"""The first whose matrix units torch multiplies with a scale per row."""


class LinearChange:
    """Called with each linear of the layers while weights are read."""

    def __init__(self, fp8: bool, fixed_rows: bool) -> None:
        self.saved_bytes = 0
        self._fp8 = fp8
        self._fixed_rows = fixed_rows

    def __call__(self, linear: Linear) -> Linear:
        if self._fp8 and isinstance(linear, PlainLinear) and _fits(linear.weight):
            smaller = Fp8Linear(linear.weight, linear.bias)
            self.saved_bytes += linear.weight.nbytes - smaller.weight.nbytes - smaller.scales.nbytes
            linear = smaller
        return FixedRowsLinear(linear) if self._fixed_rows else linear

    def head(self, linear: Linear) -> Linear:
        """The head keeps its format: the embedding often has the same memory, and logits want the precision."""
        return FixedRowsLinear(linear) if self._fixed_rows else linear


def linear_change(spec: EngineSpec, dtype: torch.dtype, device: torch.device) -> LinearChange | None:
    """None to leave all linears as they are. Raises StartError for what this device does not do."""
    if spec.quantization is not None:
        check_quantization(spec.quantization, dtype, device)
    if spec.batch_invariant and device.type == "cpu":
        raise StartError(
            "--batch-invariant on a CPU is for models that the kernels compute (weights of 16 bits and less, with "
            "--dtype auto): torch's attention there adds up in an order that depends on the batch"
        )
    if spec.batch_invariant and spec.parallel.tensor > 1:
        raise StartError(
            f"--batch-invariant is not for --tensor-parallel-size {spec.parallel.tensor}: in which order the ranks' "
            "parts are added up depends on the batch"
        )
    if spec.quantization is None and not spec.batch_invariant:
        return None
    return LinearChange(fp8=spec.quantization == FP8, fixed_rows=spec.batch_invariant)


def check_quantization(name: str, dtype: torch.dtype, device: torch.device) -> None:
    """Raises StartError unless weights can be held in this format here."""
    if name != FP8:
        raise StartError(f"--quantization {name!r} is not known; the only one is {FP8!r}")
    if device.type != "cuda":
        raise StartError(f"--quantization {FP8!r} is for GPUs, and the device is {device.type!r}")
    capability = torch.cuda.get_device_capability(device)
    if capability < FP8_CAPABILITY:
        raise StartError(
            f"--quantization {FP8!r} needs a GPU of compute capability {FP8_CAPABILITY[0]}.{FP8_CAPABILITY[1]} or "
            f"more, and this one has {capability[0]}.{capability[1]}"
        )
    if dtype != torch.bfloat16:
        raise StartError(f"--quantization {FP8!r} computes with --dtype bfloat16, not {dtype}")


def _fits(weight: torch.Tensor) -> bool:
    """Not routers and gates of experts, say."""
    return not any(size % ALIGNMENT for size in weight.shape)
