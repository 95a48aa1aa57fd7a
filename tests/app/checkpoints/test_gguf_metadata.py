from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from app.checkpoints.gguf_metadata import read_gguf
from protocol.errors import CheckpointError
from tests.helpers.tiny_gguf import metadata, write_gguf


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def header(keys: bytes = b"", tensors: bytes = b"", *, version: int = 3, key_count: int = 0, tensor_count: int = 0):
    return b"GGUF" + struct.pack("<IQQ", version, tensor_count, key_count) + keys + tensors


def tensor(name: str, dimensions: list[int], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, kind, offset)


def number(key: str, value: int) -> bytes:
    return text(key) + struct.pack("<II", 4, value)


def test_keys_and_tensors_are_read_as_the_gguf_package_wrote_them(tmp_path: Path):
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    half = np.arange(32, dtype=np.float16)
    path = write_gguf(
        tmp_path / "m.gguf", tensors={"a": values, "b": half}, changes={"x.flag": True, "x.f": [0.5, 1.5]}
    )
    gguf = read_gguf(path)
    assert gguf.size == path.stat().st_size
    for key, value in metadata().items():
        assert gguf.metadata[key] == (pytest.approx(value) if isinstance(value, float) else value)
    assert gguf.metadata["x.flag"] is True
    assert gguf.metadata["x.f"] == [0.5, 1.5]
    assert (gguf.tensors["a"].type, gguf.tensors["a"].shape, gguf.tensors["a"].nbytes) == ("F32", (2, 3), 24)
    assert (gguf.tensors["b"].type, gguf.tensors["b"].shape) == ("F16", (32,))
    content = path.read_bytes()
    for name, array in {"a": values, "b": half}.items():
        place = gguf.tensors[name]
        assert content[place.offset : place.offset + place.nbytes] == array.tobytes()


def test_blocks_count_in_the_bytes_of_a_quantised_tensor(tmp_path: Path):
    path = tmp_path / "q.gguf"
    body = header(tensors=tensor("w", [64, 3], 3, 0), tensor_count=1)
    path.write_bytes(body + bytes(-len(body) % 32) + bytes(3 * 2 * 20))
    place = read_gguf(path).tensors["w"]
    assert (place.type, place.shape, place.nbytes) == ("Q4_1", (3, 64), 120)


NESTED = text("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 6
DAMAGED = {
    "empty file": (b"", "not a GGUF file"),
    "wrong magic": (b"PK\3\4" + bytes(64), "not a GGUF file: it starts with b'PK"),
    "only magic": (b"GGUF", "ends inside the header"),
    "version 1": (header(version=1), "GGUF version 1 is not supported"),
    "big endian": (b"GGUF" + struct.pack(">I", 3) + bytes(16), "big-endian"),
    "missing keys": (header(key_count=1), "ends inside key 1 of 1"),
    "key cut off": (
        header(text("name") + struct.pack("<IQ", 8, 99) + b"x", key_count=1),
        "ends inside key name: 99 bytes",
    ),
    "huge array": (header(text("k") + struct.pack("<IIQ", 9, 8, 1 << 60), key_count=1), "ends inside key k"),
    "huge numbers": (header(text("k") + struct.pack("<IIQ", 9, 4, 1 << 60), key_count=1), "ends inside key k"),
    "unknown value type": (
        header(text("k") + struct.pack("<I", 77), key_count=1),
        "key k has the unknown value type 77",
    ),
    "deep arrays": (header(NESTED, key_count=1), "nests arrays deeper"),
    "key not UTF-8": (header(struct.pack("<Q", 1) + b"\xff", key_count=1), "not UTF-8"),
    "doubled key": (header(number("k", 1) * 2, key_count=2), "the key k occurs twice"),
    "zero alignment": (header(number("general.alignment", 0), key_count=1), "general.alignment is 0"),
    "unknown tensor type": (
        header(tensors=tensor("w", [32], 4242, 0), tensor_count=1),
        "tensor w has the unknown type 4242",
    ),
    "no dimensions": (header(tensors=tensor("w", [], 0, 0), tensor_count=1), "tensor w has 0 dimensions"),
    "part of a block": (
        header(tensors=tensor("w", [33], 3, 0), tensor_count=1),
        "rows of 33, expected a multiple of 32",
    ),
    "tensor table cut off": (header(tensors=text("w"), tensor_count=1), "ends inside the entry of tensor w"),
    "data cut off": (header(tensors=tensor("w", [32], 0, 0), tensor_count=1) + bytes(50), "tensor w ends at byte"),
    "doubled tensor": (header(tensors=tensor("w", [1], 0, 0) * 2, tensor_count=2) + bytes(99), "tensor w occurs twice"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file_is_refused_by_name_and_place(case: str, tmp_path: Path):
    content, expected = DAMAGED[case]
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_gguf(path)
    assert caught.value.message.startswith(str(path))
    assert expected in caught.value.message


def test_every_truncation_of_a_file_is_refused(tmp_path: Path):
    path = write_gguf(tmp_path / "m.gguf")
    content = path.read_bytes()
    for length in {*range(4, 400, 7), *range(400, len(content), 1009), len(content) - 64}:
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"truncated|smaller|ends"):
            read_gguf(path)


def test_a_key_of_the_wrong_kind_is_refused(tmp_path: Path):
    gguf = read_gguf(write_gguf(tmp_path / "m.gguf", changes={"x.number": 3, "x.flag": True, "x.list": ["a"]}))
    assert gguf.require("x.number", float) == 3.0
    assert gguf.get("x.absent", int, 7) == 7
    for key, kind in (("x.number", str), ("x.flag", int), ("x.list", float), ("x.absent", int)):
        with pytest.raises(CheckpointError, match=key):
            gguf.require(key, kind)
    with pytest.raises(CheckpointError, match=r"x\.list must hold numbers only"):
        gguf.numbers("x.list")


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(CheckpointError, match="No such file"):
        read_gguf(tmp_path / "absent.gguf")
