"""What the weights actor and an engine agree on: the table of tensors, its key, and how the offer reaches a loading
thread. Imports no torch: an engine waits for the offer while it may still be importing. Used by gpu/load_model."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import final

import msgspec

from gpu.kernels.laid_out_file import files_digest
from gpu.weight_files import weights_bytes
from protocol.spec import SharedWeights, WeightsFacts
from protocol.tensors import TensorHandle

VERSION = 1
"""Of what a name in the table means."""
LEAST_BYTES_A_SECOND = 20_000_000
"""What reading a checkpoint and laying it out do at the very least, on a slow disk or over a network."""

logger = logging.getLogger("trillm.weights")


class TensorTable(msgspec.Struct, frozen=True):
    """Where the tensors of one checkpoint are."""

    key: str
    tensors: dict[str, TensorHandle]
    """By the names that gpu/shared_loader makes."""


def weights_key(files: Sequence[Path], dtype: str, torch_version: str) -> str:
    """What the shared tensors are made from and for: other files, types or libraries are another key."""
    return f"{VERSION} {files_digest(files)} {dtype} {torch_version}"


def longest_wait(seconds: float, num_bytes: int) -> float:
    """In seconds: `seconds` for what does not depend on size, as starting and building kernels, and the time that so
    many bytes take at LEAST_BYTES_A_SECOND. Who loads beside a weights actor that is only slow has it all twice."""
    return seconds + num_bytes / LEAST_BYTES_A_SECOND


@final
class WeightsOffer:
    """From the event loop, which is told by the supervisor, to the thread that loads."""

    def __init__(self, seconds: float, checkpoints: Sequence[str] = ()) -> None:
        """Nobody waits longer than `longest_wait` of these `seconds` and `checkpoints`, which are all that the weights
        actor loads, before it says anything of one. Its progress is not told here."""
        self._seconds = seconds
        self._checkpoints = checkpoints
        self._condition = threading.Condition()
        self._told = False
        self._facts: WeightsFacts | None = None

    def take(self, facts: WeightsFacts | None) -> None:
        """What there is now; None: nothing is to be waited for."""
        with self._condition:
            self._told, self._facts = True, facts
            self._condition.notify_all()

    def wait(self, checkpoint: str) -> SharedWeights | None:
        """In the loading thread: what there is of this checkpoint, as soon as that is known. None, with a line in the
        log if it took too long, to load without."""
        longest = longest_wait(self._seconds, sum(weights_bytes(Path(one)) for one in self._checkpoints))
        with self._condition:
            if not self._condition.wait_for(lambda: self._told, longest):
                self._told = True
                logger.warning("the weights actor has not been ready for %.0f s: this engine loads by itself", longest)
            shares = [] if self._facts is None else self._facts.shares
            return next((share for share in shares if share.checkpoint == checkpoint), None)
