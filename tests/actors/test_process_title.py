"""A process's name in lists of processes is one of its arguments, which can be written over."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from pathlib import Path
from actors.process_title import rename_argument
print(rename_argument(sys.argv[2], sys.argv[3]), *Path("/proc/self/cmdline").read_text().split("\\0")[3:], sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("old", "new", "printed"),
    [
        ("standby-0", "engine-0", "True engine-0  standby-0 engine-0  ['standby-0', 'standby-0', 'engine-0']"),
        ("standby-0", "engine-10", "True engine-10 standby-0 engine-10  ['standby-0', 'standby-0', 'engine-10']"),
        ("standby-0", "engine-100", "False standby-0 standby-0 engine-100  ['standby-0', 'standby-0', 'engine-100']"),
        ("other", "engine-0", "False standby-0 other engine-0  ['standby-0', 'other', 'engine-0']"),
    ],
    ids=["shorter", "as long", "too long", "not there"],
)
def test_an_argument_gives_its_place_to_a_name_that_fits(old, new, printed):
    arguments = [sys.executable, "-c", SCRIPT, "standby-0", old, new]
    found = subprocess.run(arguments, capture_output=True, text=True, check=True)

    assert found.stdout == printed + "\n"
