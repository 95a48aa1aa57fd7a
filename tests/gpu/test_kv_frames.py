"""A window as ranks see it: each its own piece of each frame, and nothing that is no window."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from actors.kv.window import Window
from gpu.kv_frames import KvFrames
from protocol.kv import KvLayout

LAYOUT = KvLayout(b"digest", 16, [100, 64, 7])


def test_each_rank_writes_its_own_piece_and_the_owner_reads_them_side_by_side():
    with Window(LAYOUT, 3) as window:
        for rank, size in enumerate(LAYOUT.piece_bytes):
            with KvFrames(window.described(), rank) as frames:
                frames.piece(1)[:] = bytes([rank + 1]) * size
        frame = window.frame(1).tobytes()
        pieces = [bytes([rank + 1]) * size for rank, size in enumerate(LAYOUT.piece_bytes)]
        assert frame == pieces[0].ljust(128, b"\0") + pieces[1] + pieces[2].ljust(64, b"\0")
        assert not any(window.frame(0))
        assert not any(window.frame(2))


def test_what_is_mapped_stays_beyond_the_window_s_end():
    with Window(LAYOUT, 2) as window:
        frames = KvFrames(window.described(), 1)
    frames.piece(1)[:] = b"x" * 64
    assert frames.piece(1).tobytes() == b"x" * 64
    frames.close()
    frames.close()


def test_a_frame_beyond_the_window_is_our_bug():
    with Window(LAYOUT, 2) as window, KvFrames(window.described()) as frames:
        for frame in (-1, 2):
            with pytest.raises(AssertionError, match="is none of 2"):
                frames.piece(frame)


def test_a_connector_that_is_gone_is_an_error_of_the_system():
    code = "import os; print(os.getpid(), os.memfd_create('window'))"
    pid, descriptor = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.split()
    with Window(LAYOUT, 2) as window:
        path = f"/proc/{pid.decode()}/fd/{descriptor.decode()}"
        with pytest.raises(FileNotFoundError):
            KvFrames(msgspec.structs.replace(window.described(), path=path))


def test_another_file_in_the_window_s_place_is_not_mapped(tmp_path: Path):
    """The connector is gone, and its number is another process's."""
    with Window(LAYOUT, 2) as window:
        described = window.described()
        with pytest.raises(OSError, match="is no window of 768 bytes, but a file of 512"):
            KvFrames(msgspec.structs.replace(described, num_frames=3))
    named = tmp_path / "named"
    named.write_bytes(bytes(512))
    with pytest.raises(OSError, match="is no window"):
        KvFrames(msgspec.structs.replace(described, path=str(named)))


def test_the_window_s_size_cannot_be_changed_by_anybody():
    """Whoever reads beyond the end of a file that has become shorter is ended by a signal."""
    with Window(LAYOUT, 2) as window, KvFrames(window.described()) as frames:
        for size in (0, 511, 513, 1 << 20):
            with pytest.raises(PermissionError):
                os.truncate(window.described().path, size)
        assert not any(frames.memory)


def test_memory_that_may_become_shorter_is_not_mapped():
    descriptor = os.memfd_create("window", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, 512)
        with Window(LAYOUT, 2) as window, pytest.raises(OSError, match="may become shorter"):
            KvFrames(msgspec.structs.replace(window.described(), path=f"/proc/self/fd/{descriptor}"))
    finally:
        os.close(descriptor)


def num_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def test_pages_that_were_mapped_at_once_are_not_mapped_one_by_one():
    size = (3 << 20) + 100
    with Window(KvLayout(b"", 16, [100, size, 64]), 2) as window, KvFrames(window.described(), 1) as frames:
        frames.piece(1)[5:10] = b"stays"
        frames.map_pages(1)
        piece, content = frames.piece(1), b"x" * size
        before = num_faults()
        assert piece[5:10] == b"stays"
        piece[:] = content
        faults = num_faults() - before
        piece.release()
        assert faults < 100  # of 770
        assert os.stat(window.described().path).st_blocks * 512 < size + (1 << 20)  # the other frame has none


def test_a_system_that_cannot_map_at_once_maps_as_it_is_written(monkeypatch):
    monkeypatch.setattr("gpu.kv_frames.MADV_POPULATE_WRITE", 9999)
    with Window(LAYOUT, 2) as window, KvFrames(window.described()) as frames:
        frames.map_pages(0)
        frames.piece(0)[:] = b"x" * 100
        assert window.frame(0).tobytes()[:100] == b"x" * 100


def test_no_descriptor_is_kept():
    with Window(LAYOUT, 2) as window:
        before = len(os.listdir("/proc/self/fd"))
        frames = KvFrames(window.described())
        # mmap keeps one of its own for resizing, and nothing else is open.
        assert len(os.listdir("/proc/self/fd")) - before <= 1
        frames.close()
        assert len(os.listdir("/proc/self/fd")) == before
