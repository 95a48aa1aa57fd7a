"""The same decoder as gpu/models/decoder.py, written down once as a program of kernel operations that each step runs.

Activations are float32 rows in buffers that live as long as the program; what a quantised weight reads is quantised
beside them by the operation that makes it. Used by gpu/native_model.
"""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from gpu.config import ModelConfig
from gpu.kernels.laid_out import LaidOutMatrix
from gpu.kernels.library import Program
from gpu.kernels.structs import (
    COARSE_BLOCK_BYTES,
    FINE_BLOCK_BYTES,
    MAX_PROJECTIONS,
    PANEL_TOKENS,
    Angles,
    Attend,
    Cache,
    Embed,
    Gate,
    Heads,
    Kind,
    Linear,
    LinearInput,
    LinearOutput,
    Lora,
    Matrix,
    Norm,
    Operation,
    Quantise,
    Quantised,
    Rotate,
)
from gpu.lora_checkpoint import LinearName
from gpu.native_loras import LinearOf, NativeLoras

NO_QUANTISED = Quantised()


@attrs.frozen(eq=False)
class NativeLinear:
    """Matrices with the same input, whose outputs lie one after the other, and the bias of all."""

    matrices: Sequence[LaidOutMatrix]
    bias: np.ndarray | None

    @property
    def is_quantised(self) -> bool:
        return any(matrix.format.is_quantised for matrix in self.matrices)


@attrs.frozen(eq=False)
class NativeLayer:
    """The weights of one layer; vectors are float32."""

    attention_norm: np.ndarray
    qkv: NativeLinear
    query_norm: np.ndarray | None
    key_norm: np.ndarray | None
    output: NativeLinear
    mlp_norm: np.ndarray
    gate_up: NativeLinear
    down: NativeLinear


@attrs.frozen(eq=False)
class NativeWeights:
    """All of a model's weights as the kernels read them."""

    embedding: LaidOutMatrix
    layers: Sequence[NativeLayer]
    norm: np.ndarray
    head: LaidOutMatrix
    frequencies: np.ndarray
    """[head_dim / 2], radians per position."""


class Precision(enum.Enum):
    """How activations are kept beside their float32 for the weights that read them."""

    NUMBERS = enum.auto()
    """Not at all: float weights read float32."""
    COARSE = enum.auto()
    """As int8. Of the default model's next tokens 95 % are those that float32 has (KL 0.003)."""
    FINE = enum.auto()
    """As two int8, 15 bits in all: indistinguishable from float32 (KL below 1e-5). The dot products are computed twice,
    which costs nothing at one sequence, where reading the weights takes the time, and a third at many."""


class Rows:
    """A buffer of activations [capacity, size], and the same quantised if some weight reads it so."""

    def __init__(self, capacity: int, size: int, precision: Precision = Precision.NUMBERS) -> None:
        self.numbers = np.empty((capacity, size), dtype=np.float32)
        self.address = self.numbers.ctypes.data
        self.blocks = np.empty(0, dtype=np.uint8)
        self.quantised = NO_QUANTISED
        if precision is not Precision.NUMBERS:
            block_bytes = FINE_BLOCK_BYTES if precision is Precision.FINE else COARSE_BLOCK_BYTES
            panels = -(-capacity // PANEL_TOKENS)
            self.blocks = np.empty(panels * PANEL_TOKENS * size // 32 * block_bytes, dtype=np.uint8)
            address = self.blocks.ctypes.data
            self.quantised = Quantised(fine=address) if precision is Precision.FINE else Quantised(coarse=address)


class NativeDecoder:
    """Three programs: token ids to hidden states for up to `capacity` tokens, hidden states to logits, and the final
    norm alone."""

    def __init__(
        self,
        config: ModelConfig,
        weights: NativeWeights,
        caches: Mapping[int, tuple[int, int]],
        capacity: int,
        precision: Precision,
        loras: NativeLoras | None = None,
    ) -> None:
        """`caches` has the addresses of each layer's keys and values; `precision` is of what quantised weights
        read. Without `loras` there are no operations for adapters."""
        self.capacity = capacity
        self._precision = precision
        self._config = config
        self._weights = weights
        self._loras = loras
        self._buffers: list[Rows] = []
        self._operations: list[Operation] = []
        self.hidden = self._rows(config.hidden_size)
        """The residual stream: after the program has run, the last layer's output."""
        self.layers = self._record_layers(caches)
        self._normed = self._rows(config.hidden_size, self._read_by([NativeLinear([weights.head], None)]))
        self._head_norm = self._norm(self.hidden, weights.norm, self._normed)
        self._head = self._linear_part(weights.head, self._normed, 0, config.vocab_size)
        self.head = self._program()
        self._norm_alone = self._norm(self.hidden, weights.norm, self.hidden)
        self.norm = self._program()

    def point_head(self, hidden: int, logits: int) -> None:
        """Let the head's program read and write at these addresses: [rows, hidden] and [rows, vocab] float32."""
        self._head_norm.x = hidden
        self._head.output.y = logits

    def point_norm(self, hidden: int, normed: int) -> None:
        """Let the norm's program read and write at these addresses: [rows, hidden] float32 both."""
        self._norm_alone.x = hidden
        self._norm_alone.into = normed

    def _record_layers(self, caches: Mapping[int, tuple[int, int]]) -> Program:
        config, weights = self._config, self._weights
        heads = Heads(config.num_heads, config.num_kv_heads, config.head_dim)
        pairs = config.head_dim // 2
        cos, sin = self._rows(pairs), self._rows(pairs)
        layers = weights.layers

        normed = self._rows(config.hidden_size, self._read_by([layer.qkv for layer in layers]))
        qkv = self._rows((config.num_heads + 2 * config.num_kv_heads) * config.head_dim)
        width = config.num_heads * config.head_dim
        attended = self._rows(width, self._read_by([layer.output for layer in layers]))
        mlp_normed = self._rows(config.hidden_size, self._read_by([layer.gate_up for layer in layers]))
        gate_up = self._rows(2 * config.intermediate_size)
        gated = self._rows(config.intermediate_size, self._read_by([layer.down for layer in layers]))
        low = None if self._loras is None else self._rows(MAX_PROJECTIONS * self._loras.max_rank)

        embedding = _matrix(weights.embedding)
        self._add(Embed(Kind.EMBED, embedding, self.hidden.address))
        self._add(
            Angles(
                Kind.ANGLES,
                pairs,
                weights.frequencies.ctypes.data,
                config.rope.attention_factor,
                cos.address,
                sin.address,
            )
        )
        for index, layer in enumerate(layers):
            cache = Cache(*caches[index])
            self._norm(self.hidden, layer.attention_norm, normed)
            self._linear(layer.qkv, normed, qkv)
            self._adapt(LinearOf(index, LinearName.QKV), normed, qkv, low)
            norms = (_address(layer.query_norm), _address(layer.key_norm))
            self._add(
                Rotate(Kind.ROTATE, heads, qkv.address, cos.address, sin.address, *norms, config.rms_norm_eps, cache)
            )
            window = config.windows[index] or 0
            self._add(Attend(Kind.ATTEND, heads, qkv.address, attended.address, window, cache))
            if layer.output.is_quantised:
                self._add(Quantise(Kind.QUANTISE, width, attended.address, attended.quantised))
            self._linear(layer.output, attended, self.hidden, accumulate=True)
            self._adapt(LinearOf(index, LinearName.OUTPUT), attended, self.hidden, low)
            self._norm(self.hidden, layer.mlp_norm, mlp_normed)
            self._linear(layer.gate_up, mlp_normed, gate_up)
            self._adapt(LinearOf(index, LinearName.GATE_UP), mlp_normed, gate_up, low)
            self._add(Gate(Kind.GATE, config.intermediate_size, gate_up.address, gated.address, gated.quantised))
            self._linear(layer.down, gated, self.hidden, accumulate=True)
            self._adapt(LinearOf(index, LinearName.DOWN), gated, self.hidden, low)
        return self._program()

    def _norm(self, x: Rows, weight: np.ndarray, into: Rows) -> Norm:
        operation = Norm(
            Kind.NORM,
            x.numbers.shape[1],
            x.address,
            _address(weight),
            self._config.rms_norm_eps,
            into.address,
            into.quantised,
        )
        self._add(operation)
        return operation

    def _linear(self, linear: NativeLinear, x: Rows, y: Rows, accumulate: bool = False) -> None:
        first = 0
        for matrix in linear.matrices:
            bias = None if linear.bias is None else linear.bias[first:]
            self._linear_part(matrix, x, y.address + 4 * first, y.numbers.shape[1], bias, accumulate)
            first += matrix.rows

    def _adapt(self, linear: LinearOf, x: Rows, y: Rows, low: Rows | None) -> None:
        """Add to y, which has the linear's result by now, what adapters make of x; `low` is between both matrices."""
        if self._loras is None or low is None:
            return
        table = self._loras.tables[linear]
        first_rows = [module.first_row for _, module in table.modules]
        self._add(
            Lora(
                Kind.LORA,
                len(table.modules),
                x.numbers.shape[1],
                x.address,
                y.address,
                y.numbers.shape[1],
                tuple(first_rows),
                self._loras.max_rank,
                low.address,
                ctypes.addressof(table.low_ranks),
            )
        )

    def _linear_part(
        self,
        matrix: LaidOutMatrix,
        x: Rows,
        y: int,
        stride: int,
        bias: np.ndarray | None = None,
        accumulate: bool = False,
    ) -> Linear:
        operation = Linear(
            Kind.LINEAR,
            _matrix(matrix),
            LinearInput(x.address, x.quantised),
            LinearOutput(y, stride, accumulate, _address(bias)),
        )
        self._add(operation)
        return operation

    def _read_by(self, linears: Sequence[NativeLinear]) -> Precision:
        """How the input of these linears is kept."""
        return self._precision if any(linear.is_quantised for linear in linears) else Precision.NUMBERS

    def _rows(self, size: int, precision: Precision = Precision.NUMBERS) -> Rows:
        rows = Rows(self.capacity, size, precision)
        self._buffers.append(rows)
        return rows

    def _add(self, operation: Operation) -> None:
        self._operations.append(operation)

    def _program(self) -> Program:
        """What was added since the last one."""
        program = Program(self._operations)
        self._operations = []
        return program


def _matrix(matrix: LaidOutMatrix) -> Matrix:
    return Matrix(matrix.data.ctypes.data, matrix.format, matrix.rows, matrix.columns)


def _address(array: np.ndarray | None) -> int | None:
    return None if array is None else array.ctypes.data
