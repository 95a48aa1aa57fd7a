"""Decode steps as CUDA graphs: recorded once per shape, then launched as one, since a small step is bound by launches.

Recorded when a shape is first needed, the largest one when the model is loaded (its memory serves the others, and it
shows whether recording works). Used by gpu/torch_model. The recording itself, CudaCapture, has never run on a GPU; the
rest is tested with a recorder that calls the function again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

import attrs
import torch

from gpu.batch import StepBatch
from gpu.graph_plan import GraphInputs, GraphKey, GraphPlan
from gpu.model import Computed
from gpu.staging import Staging, num_bytes, split
from gpu.varlen_attention import KvAccess, VarlenBackend, VarlenRows
from protocol.step import Row

TOLERANCE = 0.02
"""Of the largest hidden value: how far a replay may be from the same step without a graph."""


class Replay(Protocol):
    """A recorded function."""

    def __call__(self) -> torch.Tensor:
        """Run it on what its inputs hold now; the result is the same memory each time."""


Capture = Callable[[Callable[[], torch.Tensor]], Replay]
"""Records a function of no arguments that works on fixed memory. Running it more often than once does no harm."""


class CudaCapture:
    """Records with torch.cuda.graph; all graphs share one pool of memory, since one runs at a time."""

    def __init__(self) -> None:
        self._alive: weakref.WeakSet[CudaReplay] = weakref.WeakSet()
        """Whose pool the next one shares. A pool goes with its last graph, and torch's handle of it is void then."""

    def __call__(self, run: Callable[[], torch.Tensor]) -> Replay:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # loads kernels and makes workspaces, which a recording must not
            run()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=next((other.graph.pool() for other in self._alive), None)):
            out = run()
        replay = CudaReplay(graph, out)
        self._alive.add(replay)
        return replay


@attrs.frozen(eq=False)
class CudaReplay:
    """Implements Replay."""

    graph: torch.cuda.CUDAGraph
    out: torch.Tensor

    def __call__(self) -> torch.Tensor:
        self.graph.replay()
        return self.out


class StepGraph:
    """One shape: its inputs in fixed memory, and what was recorded over them."""

    def __init__(self, key: GraphKey, backend: VarlenBackend, block_size: int, device: torch.device) -> None:
        self._access = backend.access
        paged = backend.access is KvAccess.PAGED
        table = key.rows * key.width
        longs = [key.rows] * 4 + ([] if paged else [table])
        ints = [key.rows] + ([table] if paged else [])
        self._memory = torch.zeros(num_bytes(longs, ints), dtype=torch.uint8, device=device)
        (tokens, positions, slots, begun, *flat), (lengths, *tables) = split(self._memory, longs, ints)
        starts = torch.arange(key.rows + 1, dtype=torch.int32, device=device)
        span = key.width * block_size
        max_q, max_k = backend.bounds(1, span)
        rows = VarlenRows(
            cu_seq_q=starts,
            lengths=lengths,
            max_q=max_q,
            max_k=max_k,
            blocks=tables[0].view(key.rows, key.width) if paged else flat[0],
            cu_seq_k=None if paged else starts * span,
        )
        self.batch = StepBatch(tokens, positions, list(range(key.rows)), backend.plans(slots, rows), begun)
        self.replay: Replay | None = None

    def fill(self, inputs: GraphInputs, staging: Staging) -> None:
        longs = [inputs.token_ids, inputs.positions, inputs.slots, inputs.begun_blocks]
        ints = [inputs.lengths]
        (ints if self._access is KvAccess.PAGED else longs).append(inputs.blocks)
        staging.place(longs, ints, into=self._memory)


class DecodeGraphs:
    """The graphs of one model, by shape."""

    def __init__(
        self,
        plan: GraphPlan,
        capture: Capture,
        run: Callable[[StepBatch], torch.Tensor],
        backend: VarlenBackend,
        block_size: int,
        device: torch.device,
    ) -> None:
        """`run` computes a step's hidden states, [tokens, hidden], without waiting for the device anywhere."""
        self._plan = plan
        self._capture = capture
        self._run = run
        self._backend = backend
        self._block_size = block_size
        self._device = device
        self._staging = Staging(device)
        self._graphs: dict[GraphKey, StepGraph] = {}

    def holds(self, rows: Sequence[Row]) -> bool:
        """Whether there is a graph for this step, recorded or to be."""
        return self._plan.key_for(rows) is not None

    def compute(self, rows: Sequence[Row]) -> Computed | None:
        """None for a step that no graph holds. The result is valid until the next step."""
        key = self._plan.key_for(rows)
        if key is None:
            return None
        return Computed(self._replayed(key, rows)[: len(rows)], list(range(len(rows))))

    def why_not(self) -> str | None:
        """Record the largest graph and hold it to the same step without one: None if they agree, else the reason."""
        key = self._plan.largest
        try:
            found = self._replayed(key, ()).clone()
        except RuntimeError as error:  # what torch raises for whatever cannot be recorded
            return str(error).partition("\n")[0]
        expected = self._run(self._graphs[key].batch)
        difference = (found - expected).abs().max().item() / (expected.abs().max().item() or 1.0)
        return None if difference <= TOLERANCE else f"a replay differs from the step itself by {difference:.3g}"

    def forget(self) -> None:
        """The memory that the graphs work on goes away: each is recorded again when it is next needed."""
        self._graphs.clear()

    def _replayed(self, key: GraphKey, rows: Sequence[Row]) -> torch.Tensor:
        graph = self._graphs.get(key)
        if graph is None:
            graph = StepGraph(key, self._backend, self._block_size, self._device)
        graph.fill(self._plan.inputs(key, rows), self._staging)
        if graph.replay is None:
            batch = graph.batch
            graph.replay = self._capture(lambda: self._run(batch))
            self._graphs[key] = graph
        return graph.replay()
