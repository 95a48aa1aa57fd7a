"""The groups that one rank of an engine belongs to. Opened by gpu/groups/open.py, handed to whatever computes."""

from __future__ import annotations

import attrs

from gpu.groups.group import Group, Solo
from protocol.parallel import ParallelSpec


@attrs.frozen(eq=False)
class Groups:
    """Of one rank. A rank's place in the world is pipeline.index * tensor.size + tensor.index."""

    tensor: Group = attrs.field(factory=Solo)
    """Those that share each layer of this stage."""
    pipeline: Group = attrs.field(factory=Solo)
    """Those that hold the same share of other layers, in the order of the layers."""
    expert: Group = attrs.field(factory=Solo)
    """Those that the experts are spread over: the same ranks as `tensor`, or this one alone."""
    world: Group = attrs.field(factory=Solo)
    control: Group = attrs.field(factory=Solo)
    """The same ranks, for what the first tells the others, as tensors on the CPU. There is no limit to waiting here:
    the next request comes whenever it does. That a rank has died is noticed as in the other groups."""
    parallel: ParallelSpec = attrs.field(factory=ParallelSpec)

    @property
    def leads(self) -> bool:
        """Whether this rank is the engine's own process, which plans and samples."""
        return self.world.index == 0
