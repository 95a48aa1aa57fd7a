"""Which of a host's GPUs a process sees: those of its engine, its own one first. Used by torch_runner and follower.

CUDA reads CUDA_VISIBLE_DEVICES when it starts, so this comes before anything that starts it. Whatever thread asks for a
GPU then gets the right one, and no process holds memory on the card of another engine. No two GPUs were at hand: the
tests count GPUs that are not there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, MutableMapping

import torch

from protocol.errors import StartError
from protocol.spec import EngineSpec

VISIBLE = "CUDA_VISIBLE_DEVICES"

logger = logging.getLogger("trillm.cards")


def cards_of(engine: int, rank: int, engines: int, ranks: int, found: int, visible: str | None) -> list[str]:
    """The GPUs of one engine as CUDA_VISIBLE_DEVICES names them, beginning with that of this rank; the next engine has
    the next ones. `engines`, `ranks` of each and `found` are this host's; `visible` is what the operator has set.

    Raises StartError where there are too few.
    """
    needed = engines * ranks
    if needed > found:
        left = "" if visible is None else f", as {VISIBLE}={visible[:200]} has it"
        raise StartError(
            f"{engines} × {ranks} processes need {needed} GPUs, one each, and torch sees {found}{left}: lower "
            "--data-parallel-size, --tensor-parallel-size or --pipeline-parallel-size"
        )
    names = [str(number) for number in range(found)] if visible is None else visible.split(",")
    own = [name.strip() for name in names[engine * ranks : (engine + 1) * ranks]]
    return own[rank:] + own[:rank]


def take_card(
    spec: EngineSpec,
    rank: int,
    environ: MutableMapping[str, str] = os.environ,
    count: Callable[[], int] = torch.cuda.device_count,
) -> None:
    """See to it that this process's GPU is the first that it has. To be called once, before CUDA has started; `count`
    must not start it, and heed `environ`. Does nothing where one process has all, and where CPUs compute.

    Raises StartError where there are too few GPUs, or CUDA has started.
    """
    ranks = spec.ranks_per_host
    if spec.device == "cpu" or spec.num_engines * ranks == 1 or (found := count()) == 0:
        return
    cards = cards_of(spec.engine_index, rank % ranks, spec.num_engines, ranks, found, environ.get(VISIBLE))
    environ[VISIBLE] = ",".join(cards)
    if count() != ranks:
        raise StartError(
            f"{VISIBLE}={environ[VISIBLE]} was set, and torch sees {count()} GPUs: CUDA had started before"
        )
    logger.info("%s=%s", VISIBLE, environ[VISIBLE])
