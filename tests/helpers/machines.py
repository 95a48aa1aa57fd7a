"""Machines that are in order, for tests of what `trillm check` concludes of those that are not."""

from __future__ import annotations

import math
from pathlib import Path

import attrs
import msgspec

from app.checkup.address import Address
from app.checkup.machine import Machine, Place
from app.checkup.packages import EXTRAS, Packages
from app.checkup.processors import Processors
from protocol.machine import Card, Kernels, ModelFit, Probed

GIB = 2**30
PLACE = Place(Path("/somewhere"), "", 100 * GIB)
CARD = Card("NVIDIA H200", 140 * GIB, 139 * GIB, "9.0")
FIT = ModelFit("LlamaForCausalLM", "the CPU kernels", 7_600_000_000, 4 * GIB, 16 * GIB, GIB, 1024, 2**20, 8192, 8192,
               on_card=False)  # fmt: skip


def machine(**changes: object) -> Machine:
    usual = Machine(
        python="3.11.7",
        system="Linux 6.1 x86_64",
        has_pidfd=True,
        packages=Packages((), 24, tuple(EXTRAS)),
        processors=Processors("AMD EPYC", 8, math.inf, "avx512_vnni"),
        total_memory=24 * GIB,
        available_memory=16 * GIB,
        cache=PLACE,
        runtime=PLACE,
        shared_memory=8 * GIB,
        descriptors=65536,
        address=Address("127.0.0.1:8000"),
        refusals=(),
        now=1.8e9,
    )
    return attrs.evolve(usual, **changes)


def probed(**changes: object) -> Probed:
    return msgspec.structs.replace(Probed("2.13.0+cpu", "", [], Kernels(True, "/usr/bin/c++", "")), **changes)


def fit(**changes: object) -> ModelFit:
    return msgspec.structs.replace(FIT, **changes)
