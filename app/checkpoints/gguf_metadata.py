"""Reads the header of a GGUF file: its keys and where its tensors lie. Used by the conversion in gguf_checkpoint.

Our own parser because the gguf package's reader needs 4 to 16 s for the string arrays of a tokeniser, and because what
is wrong with a file has to be said by naming the file, the key or tensor, and what was expected.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import TypeVar, cast

import attrs
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from protocol.errors import CheckpointError

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
MAX_NESTING = 4

STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""GGUF's value type to the struct module's format character."""

Value = str | int | float | bool | list["Value"]
T = TypeVar("T", bound="str | int | float | bool | list[Value]")


@attrs.frozen
class GgufTensor:
    """Where one tensor lies. `shape` is in torch order (outermost first), `offset` counts from the file's start."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@attrs.frozen
class GgufFile:
    """The header of one GGUF file."""

    path: Path
    size: int
    metadata: dict[str, Value]
    tensors: dict[str, GgufTensor]

    def require(self, key: str, kind: type[T]) -> T:
        """The key's value. CheckpointError if it is missing or not of this kind (a whole number is a float too)."""
        if key not in self.metadata:
            raise CheckpointError(f"{self.path}: the key {key} is missing")
        value = self.metadata[key]
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return cast("T", float(value))
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise CheckpointError(f"{self.path}: {key} is {_shown(value)}, expected {kind.__name__}")
        return value

    def get(self, key: str, kind: type[T], default: T) -> T:
        """Like require, but a missing key gives the default."""
        return self.require(key, kind) if key in self.metadata else default

    def strings(self, key: str) -> list[str]:
        """A list of texts. CheckpointError if it is missing or holds anything else."""
        values = self.require(key, list)
        if not all(isinstance(value, str) for value in values):
            raise CheckpointError(f"{self.path}: {key} must hold strings only")
        return cast("list[str]", values)

    def numbers(self, key: str) -> list[float]:
        """A list of numbers. CheckpointError if it is missing or holds anything else."""
        values = self.require(key, list)
        if not all(isinstance(value, int | float) for value in values):
            raise CheckpointError(f"{self.path}: {key} must hold numbers only")
        return cast("list[float]", values)


def _shown(value: Value) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class _Cursor:
    """Walks the mapped file; every read is checked against its end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.position = 0
        self.what = "the header"

    def _advance(self, nbytes: int) -> int:
        start = self.position
        if nbytes > len(self.data) - start:
            raise CheckpointError(
                f"{self.path}: the file ends inside {self.what}: {nbytes} bytes expected at {start}, "
                f"the file has {len(self.data)} (truncated or damaged)"
            )
        self.position = start + nbytes
        return start

    def scalar(self, code: str) -> int | float | bool:
        layout = "<" + code
        return cast(
            "int | float | bool", struct.unpack_from(layout, self.data, self._advance(struct.calcsize(layout)))[0]
        )

    def whole(self, code: str) -> int:
        return int(self.scalar(code))

    def text(self) -> str:
        length = self.whole("Q")
        start = self._advance(length)
        try:
            return self.data[start : start + length].decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.path}: {self.what} holds text that is not UTF-8: {error}") from error

    def value(self, kind: int, depth: int = 0) -> Value:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            return self.array(depth + 1)
        if kind not in SCALARS:
            raise CheckpointError(f"{self.path}: {self.what} has the unknown value type {kind}")
        return self.scalar(SCALARS[kind])

    def array(self, depth: int) -> list[Value]:
        kind, count = self.whole("I"), self.whole("Q")
        if depth > MAX_NESTING:
            raise CheckpointError(f"{self.path}: {self.what} nests arrays deeper than {MAX_NESTING}")
        if kind in SCALARS:
            nbytes = count * struct.calcsize("<" + SCALARS[kind])
            start = self._advance(nbytes)
            return list(struct.unpack_from(f"<{count}{SCALARS[kind]}", self.data, start))
        # Each element takes at least 8 bytes, so that a damaged count runs into the file's end, not into our memory.
        return [self.value(kind, depth) for _ in range(count)]


def read_gguf(path: Path) -> GgufFile:
    """Read the header of a GGUF file of version 2 or 3, little endian.

    Raises CheckpointError for a file that cannot be read, is no GGUF, has another version, ends too early (in the
    header or in a tensor's data), or has a tensor of an unknown type.
    """
    try:
        with path.open("rb") as file:
            if (magic := file.read(4)) != MAGIC:
                raise CheckpointError(f"{path}: not a GGUF file: it starts with {magic!r}, expected {MAGIC!r}")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(_Cursor(path, data))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error


def _parse(cursor: _Cursor) -> GgufFile:
    cursor.position = len(MAGIC)
    version = cursor.whole("I")
    if version not in (2, 3):
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        kind = "a big-endian file" if swapped in (2, 3) else f"GGUF version {version}"
        raise CheckpointError(f"{cursor.path}: {kind} is not supported, expected version 2 or 3, little endian")
    tensor_count, key_count = cursor.whole("Q"), cursor.whole("Q")
    metadata: dict[str, Value] = {}
    for index in range(key_count):
        cursor.what = f"key {index + 1} of {key_count}"
        key = cursor.text()
        cursor.what = f"key {key}"
        if key in metadata:
            raise CheckpointError(f"{cursor.path}: the key {key} occurs twice")
        metadata[key] = cursor.value(cursor.whole("I"))
    tensors = [_read_tensor(cursor, index, tensor_count) for index in range(tensor_count)]
    header = GgufFile(cursor.path, len(cursor.data), metadata, {})
    alignment = header.get("general.alignment", int, DEFAULT_ALIGNMENT)
    if alignment <= 0:
        raise CheckpointError(f"{cursor.path}: general.alignment is {alignment}, expected a positive number")
    start = -(-cursor.position // alignment) * alignment
    return attrs.evolve(header, tensors=_place(header, tensors, start))


def _read_tensor(cursor: _Cursor, index: int, count: int) -> GgufTensor:
    """One entry of the tensor table; `offset` still counts from the start of the data."""
    cursor.what = f"the entry of tensor {index + 1} of {count}"
    name = cursor.text()
    cursor.what = f"the entry of tensor {name}"
    dimensions = cursor.whole("I")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise CheckpointError(
            f"{cursor.path}: tensor {name} has {dimensions} dimensions, expected 1 to {MAX_DIMENSIONS}"
        )
    shape = tuple(reversed([cursor.whole("Q") for _ in range(dimensions)]))
    number, offset = cursor.whole("I"), cursor.whole("Q")
    if number not in GGMLQuantizationType._value2member_map_:
        raise CheckpointError(f"{cursor.path}: tensor {name} has the unknown type {number}")
    kind = GGMLQuantizationType(number)
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if shape[-1] % block:
        raise CheckpointError(
            f"{cursor.path}: tensor {name} has rows of {shape[-1]}, expected a multiple of {block} for {kind.name}"
        )
    nbytes = block_bytes
    for extent in (*shape[:-1], shape[-1] // block):
        nbytes *= extent
    return GgufTensor(name, kind.name, shape, offset, nbytes)


def _place(header: GgufFile, tensors: list[GgufTensor], start: int) -> dict[str, GgufTensor]:
    """Give the tensors their places in the file, and check that they are in it."""
    placed: dict[str, GgufTensor] = {}
    for tensor in tensors:
        offset = start + tensor.offset
        if offset + tensor.nbytes > header.size:
            raise CheckpointError(
                f"{header.path}: tensor {tensor.name} ends at byte {offset + tensor.nbytes}, "
                f"but the file has only {header.size} (truncated or damaged)"
            )
        if tensor.name in placed:
            raise CheckpointError(f"{header.path}: the tensor {tensor.name} occurs twice")
        placed[tensor.name] = attrs.evolve(tensor, offset=offset)
    return placed
