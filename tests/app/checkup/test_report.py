"""A table that people read, in any terminal, and JSON that programs do."""

from __future__ import annotations

import json

from app.checkup.finding import Finding, Mark
from app.checkup.report import Look, as_json, table, verdict

FINE = Finding("cpu", Mark.OK, "8 cores")
BETTER = Finding("kernels", Mark.WARN, "no C++ compiler is installed", "apt install g++")
WRONG = Finding("address", Mark.FAIL, "127.0.0.1:8000: Address already in use", "use --port N")


def test_marks_are_words_where_a_terminal_has_no_more_than_ascii():
    told = table([FINE, BETTER, WRONG], Look())
    assert told.splitlines() == [
        " ok    cpu       8 cores",
        " warn  kernels   no C++ compiler is installed -> apt install g++",
        " FAIL  address   127.0.0.1:8000: Address already in use -> use --port N",
    ]
    assert table([Finding("cpu", Mark.OK, "Prozessor für alle")], Look()).isascii()


def test_marks_are_signs_and_colours_where_it_has():
    assert table([WRONG], Look(has_signs=True)).startswith(" ✗  address   127.0.0.1:8000: Address already in use → use")
    assert table([FINE], Look(has_signs=True, has_colours=True)) == " \x1b[32m✓\x1b[0m  cpu       8 cores"


def test_long_lines_go_on_under_themselves():
    told = table([WRONG], Look(width=40)).splitlines()
    assert len(told) > 1
    assert all(len(line) <= 40 and line.startswith(" " * 17) for line in told[1:])


def test_the_last_line_says_what_to_do_next():
    assert verdict([FINE], "trillm serve") == "All is well. Next: trillm serve"
    assert verdict([FINE, BETTER], "trillm serve") == "A server will run; see kernels. Next: trillm serve"
    assert verdict([WRONG, BETTER], "trillm serve") == "A server would not run: see address."


def test_programs_are_told_the_same():
    told = json.loads(as_json([FINE, WRONG]))
    assert (told["object"], told["ok"]) == ("check", False)
    assert told["findings"][1] == {
        "name": "address", "mark": "fail", "text": WRONG.text, "remedy": "use --port N"
    }  # fmt: skip
    assert json.loads(as_json([FINE, BETTER]))["ok"]
