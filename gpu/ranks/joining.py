"""How a rank gets its device and its groups, whether it leads or follows. Used by gpu/ranks/lead and follower."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gpu.groups.groups import Groups
from gpu.groups.open import open_groups
from gpu.groups.rendezvous import Rendezvous
from gpu.kernels.library import open_library
from gpu.load_model import pick_device
from protocol.errors import StartError
from protocol.spec import EngineSpec

WAIT_SECONDS = 240.0
"""How long one rank waits for another within a step: less than a step may take before its process is ended
(actors/record.py), so that who waits can say for whom."""
START_SECONDS = 300.0
"""How long until all ranks are there. They come once each has imported torch, and found or built the kernels."""


@contextmanager
def join_ranks(spec: EngineSpec, rank: int) -> Iterator[Groups]:
    """Raises StartError for a device or an address that is not to be had, RankLostError when another does not come."""
    device = pick_device(spec.device)
    kernels = None
    if device.type == "cpu":
        kernels = open_library(None if spec.cache_directory is None else Path(spec.cache_directory))
    rendezvous = Rendezvous.parse(spec.rendezvous)
    opening = open_groups(spec.parallel, rank, rendezvous, device, WAIT_SECONDS, START_SECONDS, kernels)
    with ExitStack() as stack:
        try:
            groups = stack.enter_context(opening)
        except OSError as error:
            raise StartError(f"rank {rank} cannot join the others: {error}") from error
        yield groups
