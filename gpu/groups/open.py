"""Opens the groups of one rank, and ends them. Used by an engine's process and by the followers.

With CUDA, tensors go through NCCL and those on CPUs through gloo, under the same group; without it through memory that
the ranks of one host share, or gloo where there is none. torch keeps what it opens in variables of its modules; all of
it is ended with the context. No two GPUs were at hand: of what is said here of NCCL nothing has been run.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import attrs
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from gpu.groups.group import Group, Solo
from gpu.groups.groups import Groups
from gpu.groups.interface import interface_towards
from gpu.groups.presence import Presence, open_presence
from gpu.groups.rendezvous import Rendezvous
from gpu.groups.shared_calls import SharedCalls
from gpu.groups.shared_group import SharedGroup
from gpu.groups.shared_memory import share_memory
from gpu.groups.torch_group import TorchGroup
from gpu.kernels.library import KernelLibrary
from protocol.errors import RankLostError
from protocol.parallel import ParallelSpec

SPIN_MICROSECONDS = 100.0
"""How long a rank waits awake for another, about as long as it takes to fall asleep and wake. Meanwhile it gives its
core to whoever wants it, so that this serves more ranks than cores too."""

NO_LIMIT_SECONDS = 10 * 365 * 86400.0


@contextmanager
def open_groups(
    parallel: ParallelSpec,
    rank: int,
    rendezvous: Rendezvous,
    device: torch.device,
    seconds: float,
    start_seconds: float,
    kernels: KernelLibrary | None = None,
) -> Iterator[Groups]:
    """The groups of this rank, once all ranks are there, which has to be within `start_seconds`. `seconds`: how long
    each waits for another in a call.

    `kernels` are for memory that CPUs share, which is used where all ranks of a group have them and are on one host.
    Raises RankLostError when a rank does not come, and OSError where there is no socket, file or memory to be had.
    """
    if parallel.world == 1:
        yield Groups(parallel=parallel)
        return
    calls = None if kernels is None or device.type != "cpu" else SharedCalls(kernels)
    with ExitStack() as stack:
        try:
            store = rendezvous.open_store(rank, parallel.world, start_seconds)
            presence = open_presence(store, rank, parallel.world, 0 if calls is None else calls.bytes(2))
            stack.callback(presence.close)
            store.set_timeout(timedelta(seconds=seconds))
            opening = _Opening(stack, store, presence, calls, seconds)
            stack.enter_context(opening.world(parallel, rank, rendezvous, device))
            groups = opening.groups(parallel, device)
        except RuntimeError as error:  # as torch's errors of networks and stores are
            told = f"the start of the ranks ({str(error).partition(chr(10))[0]})"
            raise RankLostError(None, "has not come in time or is gone", told) from error
        yield groups


@attrs.frozen
class _Opening:
    """What is needed to open one group after the other, in the same order on every rank. What is to be ended is put on
    the stack."""

    stack: ExitStack
    store: dist.Store
    presence: Presence
    calls: SharedCalls | None
    seconds: float

    @contextmanager
    def world(self, parallel: ParallelSpec, rank: int, rendezvous: Rendezvous, device: torch.device) -> Iterator[None]:
        """torch's group of all ranks, from which it makes the others."""
        # gloo listens on the address of the host's name, unless this says otherwise, and asks nobody who he is.
        interface = "lo" if rendezvous.is_on_one_host else interface_towards(rendezvous.host, rendezvous.port)
        if interface is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        dist.init_process_group(
            backend_of(device),
            store=dist.PrefixStore("torch", self.store),
            rank=rank,
            world_size=parallel.world,
            timeout=timedelta(seconds=self.seconds),
        )
        try:
            yield
        finally:
            dist.destroy_process_group()

    def groups(self, parallel: ParallelSpec, device: torch.device) -> Groups:
        """All of this rank's."""
        world = dist.group.WORLD
        assert world is not None, "it has just been made"
        control = dist.new_group(timeout=timedelta(seconds=NO_LIMIT_SECONDS), backend="gloo")
        mesh = self.mesh(parallel, device)
        back = self.mesh(parallel, device) if parallel.pipeline > 1 else mesh
        tensor = self.group("tensor", mesh.get_group("tensor"), mesh.get_group("tensor"))
        return Groups(
            tensor=tensor,
            pipeline=self.group("pipeline", mesh.get_group("pipeline"), back.get_group("pipeline")),
            expert=tensor if parallel.experts else Solo(),
            world=self.group("world", world, world),
            control=self.group("control", control, control, NO_LIMIT_SECONDS),
            parallel=parallel,
        )

    def mesh(self, parallel: ParallelSpec, device: torch.device) -> DeviceMesh:
        """Stages by ranks of a stage, with a group along each side."""
        ranks = torch.arange(parallel.world).view(parallel.pipeline, parallel.tensor)
        timeout = timedelta(seconds=self.seconds)
        sides = [
            dist.new_subgroups_by_enumeration(side.tolist(), timeout=timeout, backend=backend_of(device))[0]
            for side in (ranks.t(), ranks)
        ]
        return DeviceMesh.from_group(sides, device.type, ranks, mesh_dim_names=("pipeline", "tensor"))

    def group(
        self, name: str, there: dist.ProcessGroup, back: dist.ProcessGroup, seconds: float | None = None
    ) -> Group:
        """The best way between these ranks."""
        ranks = dist.get_process_group_ranks(there)
        if len(ranks) == 1:
            return Solo()
        group = TorchGroup(there, back, self.presence)
        if self.calls is None or not self.presence.share_memory(ranks):
            return group
        store = dist.PrefixStore(f"{name} {ranks}", self.store)
        memory = share_memory(store, group.index, group.size, self.calls.bytes(group.size))
        self.stack.callback(memory.close)
        pidfds = (ctypes.c_int * len(ranks))(*(self.presence.pidfd(rank) for rank in ranks))
        limit = self.seconds if seconds is None else seconds
        address = self.calls.open(memory.address, group.index, len(ranks), pidfds, limit, SPIN_MICROSECONDS)
        self.stack.callback(self.calls.close, address)
        return SharedGroup(self.calls, address, group.index, ranks, group)


def backend_of(device: torch.device) -> str:
    """Each tensor goes by what is for its device."""
    return "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
