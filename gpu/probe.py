"""A process that finds out what torch sees of this machine, and whether a model would fit: `python -m gpu.probe`.

ProbeAsked as JSON on stdin, Probed as JSON on stdout. Started by app/checkup, whose process loads no torch.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import msgspec
import torch

from gpu.kernels.build import compiler_trouble, find_compiler, find_library
from gpu.model_fit import model_fit
from protocol.errors import TrillmError, UnknownVariantError
from protocol.machine import Card, Kernels, ModelFit, ProbeAsked, Probed


def probe(asked: ProbeAsked) -> Probed:
    """Loads no weights, builds nothing, and takes no more of a GPU than being asked does."""
    kernels = _kernels(Path(asked.cache_directory))
    fit: ModelFit | None = None
    trouble, is_unknown = "", False
    if asked.spec is not None:
        try:
            fit = model_fit(asked.spec, kernels.is_built or not kernels.trouble)
        except TrillmError as error:
            trouble, is_unknown = error.message, isinstance(error, UnknownVariantError)
    return Probed(str(torch.__version__), torch.version.cuda or "", _cards(), kernels, fit, trouble, is_unknown)


def _cards() -> list[Card]:
    cards = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        cards.append(Card(properties.name, total, free, f"{properties.major}.{properties.minor}"))
    return cards


def _kernels(cache_directory: Path) -> Kernels:
    is_built = find_library(cache_directory) is not None
    return Kernels(is_built, find_compiler() or "", "" if is_built else compiler_trouble() or "")


def main() -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=ProbeAsked)
    sys.stdout.buffer.write(msgspec.json.encode(probe(asked)))


if __name__ == "__main__":
    main()
