from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from actors.kv.disk_file import BLOCKS, INDEX, DirectoryTakenError, DiskFile, Writing
from actors.kv.disk_index import SlotRecord
from actors.kv.disk_records import RECORD_BYTES
from protocol.kv import KvLayout
from tests.actors.kv.disk.test_disk_index import name
from tests.helpers.full_disk import small_disk

BLOCK_BYTES = 4096
LAYOUT = KvLayout(b"d" * 32, 16, [BLOCK_BYTES])
OTHER = KvLayout(b"o" * 32, 16, [BLOCK_BYTES])


def block(number: int) -> memoryview:
    return memoryview(bytes([number]) * BLOCK_BYTES)


def writing(number: int, slot: int | None = None) -> Writing:
    return Writing(number if slot is None else slot, name(number), block(number), number + 1)


def read(file: DiskFile, record: SlotRecord) -> bytes | None:
    into = bytearray(BLOCK_BYTES)
    return bytes(into) if file.read(record, memoryview(into)) else None


@pytest.fixture
def file(tmp_path: Path) -> Iterator[DiskFile]:
    file = DiskFile(tmp_path, LAYOUT)
    file.read_records()
    yield file
    file.close()


def test_what_was_written_is_there_when_the_file_is_opened_again(file: DiskFile):
    written = file.write([writing(0), writing(1)])
    file.close()

    with closing(DiskFile(file.directory, LAYOUT)) as again:
        records = again.read_records()

        assert written.error is None
        assert [(one.block_hash, one.checksum) for one in records] == list(
            zip([name(0), name(1)], written.checksums, strict=True)
        )
        assert [read(again, record) for record in records] == [block(0), block(1)]


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


BREAKAGES: dict[str, Callable[[Path], object]] = {
    "a block's byte": lambda path: flip(path / BLOCKS, BLOCK_BYTES + 7),
    "a record's byte": lambda path: flip(path / INDEX, 2 * RECORD_BYTES + 7),
    "a record's stamp": lambda path: flip(path / INDEX, 2 * RECORD_BYTES + 41),
    "the blocks cut off": lambda path: os.truncate(path / BLOCKS, 2 * BLOCK_BYTES - 1),
    "the index cut off": lambda path: os.truncate(path / INDEX, 3 * RECORD_BYTES - 60),
    "the wrong record": lambda path: (path / INDEX).write_bytes(
        (path / INDEX).read_bytes()[: 2 * RECORD_BYTES] + (path / INDEX).read_bytes()[RECORD_BYTES : 2 * RECORD_BYTES]
    ),
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_what_is_broken_is_not_there_and_the_rest_is(file: DiskFile, breakage: str):
    file.write([writing(0), writing(1)])
    file.close()
    BREAKAGES[breakage](file.path)

    with closing(DiskFile(file.directory, LAYOUT)) as again:
        found = {record.block_hash: read(again, record) for record in again.read_records()}

    assert found.pop(name(0)) == block(0)
    assert found.pop(name(1), None) is None
    assert found == {}


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"\0" * 1000, b"trillmKV" * 1000], ids=["empty", "short", "zeros", "looks like ours"]
)
def test_a_foreign_index_counts_as_none_and_is_replaced(file: DiskFile, content: bytes):
    file.write([writing(0)])
    file.close()
    (file.path / INDEX).write_bytes(content)

    with closing(DiskFile(file.directory, LAYOUT)) as again:
        assert again.read_records() == []
        assert again.write([writing(3, slot=0)]).error is None
        assert [record.block_hash for record in again.read_records()] == [name(3)]


def test_a_write_that_was_interrupted_leaves_nothing_of_the_block_before(
    file: DiskFile, monkeypatch: pytest.MonkeyPatch
):
    file.write([writing(0)])

    class Torn(Exception):
        pass

    def tear(descriptor: int, views: list[memoryview], offset: int) -> int:
        if len(views[0]) == BLOCK_BYTES:
            os.pwrite(descriptor, views[0][:100], offset)
            raise Torn
        return os.pwrite(descriptor, views[0], offset)

    monkeypatch.setattr("actors.kv.disk_file.os.pwritev", tear)
    with pytest.raises(Torn):
        file.write([writing(1, slot=0)])

    assert file.read_records() == []


def test_one_directory_is_one_connector_s(file: DiskFile):
    with pytest.raises(DirectoryTakenError):
        DiskFile(file.directory, LAYOUT)
    with pytest.raises(DirectoryTakenError):
        DiskFile(file.directory, OTHER)
    file.close()

    DiskFile(file.directory, OTHER).close()


def test_files_are_closed_by_the_last_thread_that_is_in_them(file: DiskFile):
    with file._entered():
        file.close()
        assert os.fstat(file._blocks).st_size == 0
    with pytest.raises(OSError):
        file.read_records()
    DiskFile(file.directory, LAYOUT).close()


def test_other_layouts_make_room_the_longest_unused_first(tmp_path: Path):
    for number, digest in enumerate((b"a" * 32, b"b" * 32, b"c" * 32)):
        with closing(DiskFile(tmp_path, KvLayout(digest, 16, [BLOCK_BYTES]))) as other:
            other.read_records()
            other.write([writing(0), writing(1)])
            os.utime(other.path / INDEX, (number, number))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / INDEX).write_bytes(b"somebody's")
    with closing(DiskFile(tmp_path, LAYOUT)) as file:
        file.read_records()
        file.make_room(1, 3 * BLOCK_BYTES)

    assert {path.name for path in tmp_path.iterdir()} == {"lock", "notes", (b"c" * 32).hex(), LAYOUT.digest.hex()}


def test_a_file_that_may_be_smaller_now_is_cut_off(file: DiskFile):
    file.write([writing(0), writing(1), writing(2)])
    file.make_room(1, 100 * BLOCK_BYTES)

    assert (file.path / BLOCKS).stat().st_size == BLOCK_BYTES
    assert [record.block_hash for record in file.read_records()] == [name(0)]


def test_a_reset_removes_all_blocks_and_nothing_that_is_not_ours(tmp_path: Path):
    with closing(DiskFile(tmp_path, OTHER)) as other:
        other.read_records()
        other.write([writing(0)])
    (tmp_path / "mine.txt").write_text("mine")
    with closing(DiskFile(tmp_path, LAYOUT)) as file:
        file.read_records()
        file.write([writing(0)])
        file.reset()

        assert file.read_records() == []
    assert {path.name for path in tmp_path.iterdir()} == {"lock", "mine.txt", LAYOUT.digest.hex()}


def test_a_directory_that_was_removed_is_noticed_before_more_is_written_there(file: DiskFile):
    for path in file.path.iterdir():
        path.unlink()

    assert isinstance(file.write([writing(0)]).error, FileNotFoundError)


def test_a_full_disk_keeps_what_it_has(tmp_path: Path):
    with (
        small_disk(tmp_path / "small", 64) as directory,
        closing(DiskFile(directory, LAYOUT)) as file,
    ):
        file.read_records()
        written = file.write([writing(number) for number in range(40)])

        assert written.error is not None
        assert 5 < len(written.checksums) < 16
        assert len(file.read_records()) == len(written.checksums)


def test_nobody_else_may_read_it(file: DiskFile):
    assert file.path.stat().st_mode & 0o777 == 0o700
    assert (file.path / BLOCKS).stat().st_mode & 0o777 == 0o600
