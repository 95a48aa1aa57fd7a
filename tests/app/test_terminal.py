"""A terminal that somebody draws on while others write to stderr: each line comes whole, and in the end all is as it
was."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app.terminal import STDERR, Terminal, open_terminal


@contextmanager
def open_screen() -> Iterator[int]:
    """Of a pseudo-terminal that is our stderr meanwhile: where to read what it shows."""
    kept = os.dup(STDERR)
    ours, theirs = pty.openpty()
    os.dup2(theirs, STDERR)
    os.close(theirs)
    try:
        yield ours
    finally:
        os.dup2(kept, STDERR)
        os.close(kept)
        os.close(ours)


def write(data: bytes) -> None:
    os.write(STDERR, data)


def test_lines_come_whole_to_whoever_draws_and_then_to_the_terminal() -> None:
    drawn: list[str] = []
    with open_screen() as screen, open_terminal() as terminal:
        assert not os.isatty(STDERR)
        terminal.write_line = drawn.append
        write(b"one\ntw")
        write(b"o\n\xff\n")
        terminal.drain()
        assert drawn == ["one", "two", "\\xff"]
        terminal.release()
        assert os.isatty(STDERR)
        write(b"three\n")
        assert drawn == ["one", "two", "\\xff"]
        assert os.read(screen, 100) == b"three\r\n"


def test_what_a_child_writes_later_comes_to_the_terminal_too() -> None:
    program = (
        "import sys; sys.stdin.readline(); print('late', file=sys.stderr); print('unended', end='', file=sys.stderr)"
    )
    with open_screen() as screen, open_terminal() as terminal:
        child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
        terminal.release()
        child.communicate(b"go on\n")
        terminal.close()
        assert os.read(screen, 100) == b"late\r\nunended\r\n"


def test_a_line_without_an_end_is_cut() -> None:
    drawn: list[str] = []
    with open_screen(), open_terminal() as terminal:
        terminal.write_line = drawn.append
        write(b"x" * 50_000)
        write(b"x" * 50_000 + b"\n")
        terminal.drain()
    assert "".join(drawn) == "x" * 100_000


def test_nobody_waits_for_a_line_that_somebody_has_only_begun() -> None:
    drawn: list[str] = []
    with open_screen(), open_terminal() as terminal:
        terminal.write_line = drawn.append
        write(b"\rcompiling 10%")
        terminal.drain()
        write(b"\rdone\n")
        terminal.drain()
    assert drawn == ["\rcompiling 10%", "\rdone"]


def test_a_terminal_that_has_hung_up_costs_lines_and_nobody_who_writes_them() -> None:
    heard: list[str] = []
    with open_screen() as screen, open_terminal() as terminal:
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), screen)
        write(b"lost\n" * 20_000)  # more than the pipe holds: it is still read
        print("lost, too", file=terminal.file)
        terminal.drain()
        terminal.write_line = heard.append
        write(b"heard\n")
        terminal.drain()
    assert heard == ["heard"]


def test_a_terminal_that_others_have_made_non_blocking_is_waited_for() -> None:
    with open_screen() as screen, open_terminal() as terminal:
        os.set_blocking(terminal.file.fileno(), False)
        writing = threading.Thread(target=write, args=((b"y" * 79 + b"\n") * 5000,))
        writing.start()
        assert select.select([screen], [], [], 10)[0]
        writing.join(0.1)  # all that a screen takes while nobody reads
        assert writing.is_alive()
        shown = b""
        while shown.count(b"y") < 5000 * 79 and select.select([screen], [], [], 10)[0]:
            shown += os.read(screen, 65536)
        terminal.release()
    assert shown.count(b"y") == 5000 * 79


def test_a_failure_leaves_stderr_as_it_was() -> None:
    def fail(_: Terminal) -> None:
        raise ValueError

    with open_screen():
        with pytest.raises(ValueError), open_terminal() as terminal:
            fail(terminal)
        assert os.isatty(STDERR)
