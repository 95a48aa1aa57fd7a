"""What keeps `trillm serve` from serving is one sentence for the operator."""

from __future__ import annotations

import io
import logging
import signal
import subprocess
import sys

import pytest
import trio

from app import cli
from app.cli import show_what_can_be_shown, told_to_stop
from app.commands import check
from app.commands.chat_printer import Printer
from app.commands.ending import refuse, status_of, tell
from app.commands.sources import warn_of_unknown_variables
from app.logs import quieten_libraries
from protocol.errors import StartError
from tests.helpers.command_line import say


def test_what_fails_inside_nurseries_is_told_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    async def fail(error: Exception) -> None:
        async with trio.open_nursery() as outer, trio.open_nursery() as inner:
            outer.start_soon(trio.sleep_forever)
            raise error
            inner.start_soon(trio.sleep_forever)

    for error, sentence in (
        (StartError("engine-0 could not start: no memory"), "trillm: engine-0 could not start: no memory\n"),
        (OSError(24, "Too many open files"), "trillm: [Errno 24] Too many open files\n"),
    ):
        assert status_of(lambda error=error: trio.run(fail, error)) == 1
        assert capsys.readouterr().err == sentence


def test_a_mistake_of_our_own_keeps_its_traceback() -> None:
    def run() -> int:
        raise ExceptionGroup("", [StartError("x"), AssertionError("our bug")])

    with pytest.raises(ExceptionGroup) as caught:
        status_of(run)
    assert caught.group_contains(AssertionError)


def test_a_status_is_passed_on() -> None:
    assert status_of(lambda: 0) == 0


def test_misspelt_variables_are_warned_of(monkeypatch, caplog):
    monkeypatch.setenv("TRILLM_PORT", "1")
    monkeypatch.setenv("TRILLM_MAX_NUM_SEQ", "3")
    warn_of_unknown_variables()
    assert [record.message for record in caplog.records] == [
        "TRILLM_MAX_NUM_SEQ is no setting, and is ignored; did you mean TRILLM_MAX_NUM_SEQS?"
    ]


def test_no_level_has_a_library_tell_headers():
    """At debug hpack tells each header of HTTP/2, keys as well."""
    quieten_libraries()
    assert not logging.getLogger("hpack.hpack").isEnabledFor(logging.DEBUG)


def test_what_was_asked_for_is_written_in_characters_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert tell("a → b") == 0
    assert written.getvalue() == b"a ? b\n"


def test_an_answer_does_not_break_off_at_a_character_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))
    show_what_can_be_shown()
    Printer(sys.stdout, is_terminal=False, has_styles=False).text("a → b")
    assert written.getvalue() == b"a ? b"


@pytest.mark.parametrize(("words", "status"), [(["serve", "m"], 0), (["proxy"], 0), (["pull", "m"], 143), ([], 143)])
def test_who_is_told_to_stop_has_ended_well_only_if_it_was_to_go_on_until_then(words: list[str], status: int) -> None:
    with pytest.raises(SystemExit) as left:
        told_to_stop(words)(signal.SIGTERM, None)
    assert left.value.code == status


@pytest.mark.process
def test_nobody_has_to_read_to_the_end() -> None:
    code = "import sys; from app import cli; sys.exit(cli.run(['serve', '--help=all']))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as shown:
        assert shown.stdout is not None
        shown.stdout.close()
        _, said = shown.communicate(timeout=60)
    assert (shown.returncode, said) == (0, b"")


def run_in_shell(words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f"{sys.executable} -m app.cli {words}"], capture_output=True, text=True, timeout=60
    )  # fmt: skip


@pytest.mark.process
@pytest.mark.parametrize("closed", [">&-", "<&- >&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_are_no_reason_to_fail(closed: str) -> None:
    done = run_in_shell(f"version {closed}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.process
def test_what_is_opened_never_takes_a_closed_streams_place() -> None:
    code = (
        "import os; from app.commands.standard_streams import open_what_is_closed; open_what_is_closed(); "
        "print(*(os.readlink(f'/proc/self/fd/{n}') for n in (0, 2)), os.open('/', os.O_RDONLY))"
    )
    done = subprocess.run(
        ["bash", "-c", f'{sys.executable} -c "{code}" <&- 2>&-'], capture_output=True, text=True, timeout=60
    )
    first, second, opened = done.stdout.split()
    assert (first, second) == ("/dev/null", "/dev/null")
    assert int(opened) > 2


@pytest.mark.process
def test_a_full_disk_is_told_in_a_sentence() -> None:
    done = run_in_shell("version > /dev/full")
    assert done.returncode == 1
    assert done.stderr == "trillm: what was asked for cannot be written to standard output: No space left on device\n"


def test_a_look_that_nobody_can_read_has_not_gone_well(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    async def sees_nothing_wrong(*_: object) -> check.Seen:
        return check.Seen([])

    monkeypatch.setattr(check, "look", sees_nothing_wrong)
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert cli.run(["check"]) == 1
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["chat", "bench"])
def test_a_number_that_none_can_send_is_a_wrong_flag(capsys: pytest.CaptureFixture[str], command: str) -> None:
    said = say(capsys, command, "--temperature", "nan")
    assert (said.status, said.err) == (2, "trillm: --temperature must be a number with an end, not nan\n")


def test_a_refusal_moves_no_terminal_and_fits_on_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert refuse("no \x1b[31m\u202e\nSee this. " + "x" * 10_000) == 1
    said = capsys.readouterr().err
    assert said.startswith("trillm: no \\x1b[31m\\u202e\nSee this. xxx")
    assert len(said) < 5000
