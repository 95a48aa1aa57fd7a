"""The file of laid-out weights: made once, mapped afterwards, made again when it is damaged, never needed."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest

from gpu.kernels.laid_out import Stack, laid_out_path, open_laid_out
from gpu.kernels.laid_out_file import MAGIC
from gpu.kernels.layout import FORMATS, laid_out_bytes, lay_out
from tests.helpers.kernels import KINDS, random_raw

LANES = 8
STACKS = [Stack("Q4_1", (("a", 24), ("b", 5)), 64), Stack("Q8_0", (("c", 16),), 32)]


class Source:
    """Random matrices, and how often they were read."""

    def __init__(self) -> None:
        self.reads = 0

    def raw(self, name: str, shape: tuple[int, int]) -> np.ndarray:
        self.reads += 1
        return random_raw("Q8_0" if name == "c" else "Q4_1", *shape, seed=ord(name))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache" / "weights.bin"


def check(found) -> None:
    source = Source()
    for stack in STACKS:
        raw = np.concatenate([source.raw(name, (rows, stack.columns)) for name, rows in stack.parts])
        matrix = found[stack.key]
        np.testing.assert_array_equal(matrix.data, lay_out(stack.kind, raw, LANES))
        assert (matrix.rows, matrix.columns) == (stack.rows, stack.columns)
        assert matrix.data.ctypes.data % 64 == 0


def test_the_second_start_maps_what_the_first_one_made(path):
    source = Source()
    check(open_laid_out(path, STACKS, source, LANES))
    assert source.reads == 3
    check(open_laid_out(path, STACKS, source, LANES))
    assert source.reads == 3
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("cut", [1, 100, 5000])
def test_a_file_that_is_cut_off_is_made_again(path, cut):
    open_laid_out(path, STACKS, Source(), LANES)
    path.write_bytes(path.read_bytes()[:-cut])
    check(open_laid_out(path, STACKS, Source(), LANES))
    source = Source()
    check(open_laid_out(path, STACKS, source, LANES))
    assert source.reads == 0


@pytest.mark.parametrize("content", [b"", b"x" * 50, b"\xff" * 5000])
def test_a_file_of_something_else_is_replaced(path, content):
    path.parent.mkdir()
    path.write_bytes(content)
    check(open_laid_out(path, STACKS, Source(), LANES))


@pytest.mark.parametrize("change", [(1, 1 << 40), (1, -4096), (0, -4096), (0, 1 << 40)])
def test_a_file_whose_index_points_elsewhere_is_made_again(path, change):
    """The kernels look at no bounds."""
    open_laid_out(path, STACKS, Source(), LANES)
    content = path.read_bytes()
    length = int.from_bytes(content[-len(MAGIC) - 8 : -len(MAGIC)], "little")
    start = len(content) - len(MAGIC) - 8 - length
    index = json.loads(content[start : start + length])
    which, by = change
    index["entries"]["a+b"][which] += by
    changed = json.dumps(index, separators=(",", ":")).encode().ljust(length)[:length]
    path.write_bytes(content[:start] + changed + content[start + length :])
    check(open_laid_out(path, STACKS, Source(), LANES))


def test_a_file_that_lacks_a_matrix_is_made_again(path):
    open_laid_out(path, STACKS[:1], Source(), LANES)
    check(open_laid_out(path, STACKS, Source(), LANES))


def test_a_cache_that_cannot_be_written_costs_a_warning_and_time_only(tmp_path, caplog):
    (tmp_path / "cache").write_text("a file where a directory should be")
    with caplog.at_level(logging.WARNING):
        check(open_laid_out(tmp_path / "cache" / "weights.bin", STACKS, Source(), LANES))
    assert len(caplog.records) == 1
    assert "laid out again at each start" in caplog.text


def test_without_a_path_nothing_is_kept(tmp_path):
    check(open_laid_out(None, STACKS, Source(), LANES))


def test_another_file_size_or_time_is_another_name(tmp_path):
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"one")
    first = laid_out_path(tmp_path, [weights], LANES)
    assert laid_out_path(tmp_path, [weights], LANES) == first
    assert laid_out_path(tmp_path, [weights], 16) != first
    weights.write_bytes(b"three")
    assert laid_out_path(tmp_path, [weights], LANES) != first


@pytest.mark.parametrize("kind", KINDS)
def test_the_size_of_a_laid_out_matrix_is_known_before(kind):
    raw = random_raw(kind, 21, 256)
    assert laid_out_bytes(FORMATS[kind], 21, 256, LANES) == lay_out(kind, raw, LANES).nbytes
