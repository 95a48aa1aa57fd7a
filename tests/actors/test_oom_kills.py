"""The kernel's count of processes killed for want of memory."""

from __future__ import annotations

from actors.oom_kills import count_oom_kills


def test_the_count_is_the_kernels(tmp_path):
    file = tmp_path / "vmstat"
    file.write_text("nr_free_pages 5\noom_kill 17\nnuma_hit 3\n")
    assert count_oom_kills(file) == 17


def test_a_kernel_that_does_not_tell_gives_no_count(tmp_path):
    (tmp_path / "vmstat").write_text("nr_free_pages 5\n")
    assert count_oom_kills(tmp_path / "vmstat") is None
    assert count_oom_kills(tmp_path / "missing") is None
