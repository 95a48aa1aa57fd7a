"""Commands as servers of tools: what they write, and that they end."""

from __future__ import annotations

import sys

import anyio
import pytest
import trio

from app.tools.bounded_body import BodyLimits
from app.tools.command import open_command
from app.tools.command_lines import LineReader
from app.tools.command_log import MAX_LINE_LENGTH, MAX_LINES, WINDOW_SECONDS, CommandLog
from app.tools.tool_error import ToolError
from tests.helpers.processes import is_gone


def told(size: int, data: bytes) -> list[bytes]:
    reader = LineReader(BodyLimits(100, 20))
    return [line for at in range(0, len(data), size) for line in reader.feed(data[at : at + size])]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_lines_are_messages_and_too_large_ones_errors_of_their_calls(size):
    large = b'{"jsonrpc":"2.0","id":7,"result":"%b"}' % (b"x" * 200)

    first, second, third = told(size, b"one\r\n\n \n" + large + b"\nthree\nfour")

    assert (first, third) == (b"one", b"three")
    assert second.startswith(b'{"jsonrpc":"2.0","id":7,"error":')


def test_a_line_that_is_too_large_and_answers_no_call_is_an_error():
    with pytest.raises(ToolError, match="answers no call"):
        told(7, b"x" * 200 + b"\n")


def command(script: str) -> tuple[str, ...]:
    return (sys.executable, "-c", f"import os, signal, sys, time\n{script}")


@pytest.mark.process
@pytest.mark.parametrize(
    "script",
    [
        "sys.stdin.read()",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(100)",
        "while True: os.write(1, b'x' * 4096 + b'\\n')",
        "os.close(1); time.sleep(100)",
        "time.sleep(100)",
    ],
    ids=["orderly", "stubborn", "talkative", "mute", "deaf"],
)
async def test_a_command_ends_with_its_connection_whatever_it_does(script, monkeypatch):
    monkeypatch.setattr("app.tools.command.GOODBYE_SECONDS", 0.3)
    ready = 'print(\'{"jsonrpc":"2.0","method":"pid","params":{"pid":%d}}\' % os.getpid(), flush=True)'

    with trio.fail_after(10):
        async with open_command(command(f"{ready}\n{script}"), "notes") as (heard, _):
            message = await heard.receive()

    assert is_gone(message.message.params["pid"])


@pytest.mark.process
async def test_what_is_no_message_is_heard_as_an_error_and_what_comes_after_it_too():
    script = 'print(\'hello\'); print(\'{"jsonrpc":"2.0","method":"m"}\', flush=True); sys.stdin.read()'

    async with open_command(command(script), "notes") as (heard, _):
        assert isinstance(await heard.receive(), ValueError)
        assert (await heard.receive()).message.method == "m"


@pytest.mark.process
async def test_a_command_that_has_ended_is_heard_to_have():
    async with open_command(command(""), "notes") as (heard, _):
        with pytest.raises(anyio.EndOfStream):
            await heard.receive()


@pytest.mark.process
async def test_a_command_that_leaves_a_child_is_heard_to_have_ended_and_its_child_ends_too():
    child = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])"
    script = f'import subprocess; print(\'{{"jsonrpc":"2.0","method":"%d"}}\' % {child}.pid, flush=True)'

    with trio.fail_after(10):
        async with open_command(command(script), "notes") as (heard, _):
            left = int((await heard.receive()).message.method)
            with pytest.raises(anyio.EndOfStream):
                await heard.receive()
            assert not is_gone(left)
        while not is_gone(left):
            await trio.sleep(0.01)


@pytest.mark.process
async def test_a_command_sees_none_of_our_secrets(monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "sk-secret")
    script = 'print(\'{"jsonrpc":"2.0","method":"%s"}\' % (\'VLLM_API_KEY\' in os.environ), flush=True)'

    async with open_command(command(script), "notes") as (heard, _):
        assert (await heard.receive()).message.method == "False"


@pytest.mark.process
async def test_what_a_command_says_of_itself_is_logged_with_its_label_to_its_last_word(caplog):
    caplog.set_level("INFO")
    script = "print('hello', flush=True); print('one\\n\\nValueError: \\x1b[1mtwo', end='', file=sys.stderr)"

    async with open_command(command(script), "notes") as (heard, _):
        assert isinstance(await heard.receive(), ValueError)

    assert sorted((record.levelname, record.getMessage()) for record in caplog.records) == [
        ("INFO", "notes: one"),
        ("WARNING", "notes: ValueError:  [1mtwo"),
        ("WARNING", "notes: no message on stdout: hello"),
    ]


@pytest.mark.process
async def test_a_command_that_floods_its_stderr_ends_all_the_same_and_fills_no_log(caplog, monkeypatch):
    monkeypatch.setattr("app.tools.command.GOODBYE_SECONDS", 0.3)
    caplog.set_level("INFO")
    with trio.fail_after(10):
        async with open_command(command("while True: os.write(2, b'x' * 4096 + b'\\n')"), "notes"):
            while len(caplog.records) < MAX_LINES:
                await trio.sleep(0.01)

    assert len(caplog.records) <= MAX_LINES + 1
    assert "more lines, which are not told" in caplog.text


async def test_a_log_of_a_command_is_bounded_in_length_and_rate(caplog, autojump_clock):
    caplog.set_level("INFO")
    log = CommandLog("notes")
    log.feed(b"x" * 10 * MAX_LINE_LENGTH)
    log.feed(b"x" * 10 * MAX_LINE_LENGTH + b"\n" + b"line\n" * (MAX_LINES + 4))
    assert [record.getMessage() for record in caplog.records] == [
        f"notes: {'x' * MAX_LINE_LENGTH}…",
        *["notes: line"] * (MAX_LINES - 1),
    ]
    caplog.clear()

    await trio.sleep(WINDOW_SECONDS)
    log.feed(b"again\n")

    assert [record.getMessage() for record in caplog.records] == [
        "notes: 5 more lines, which are not told",
        "notes: again",
    ]


async def test_a_command_that_is_not_there_cannot_be_run():
    with pytest.raises(FileNotFoundError):
        async with open_command(("/nonexistent/command",), "notes"):
            pass
