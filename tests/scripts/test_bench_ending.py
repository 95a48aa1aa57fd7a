"""However scripts/bench is ended, no server under test is left running."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.benchmark.compare.peers import llama_cpp_version
from scripts.benchmark.processes import stop
from tests.helpers.processes import is_gone

pytestmark = pytest.mark.process

HOME = Path(__file__).parents[2]
STUBBORN = """
import http.server, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
class Always(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Always).serve_forever()
"""
MEASURING = f"""
import pathlib, signal, sys, tempfile
import scripts.benchmark.processes as processes
from scripts.benchmark.__main__ import leave_in_order
leave_in_order()
processes.STOP_SECONDS = 0.2
server = processes.Server("stubborn", [sys.executable, "-c", {STUBBORN!r}, "{{port}}"], "m", "/ready")
with tempfile.TemporaryDirectory() as directory:
    with processes.open_server(server, pathlib.Path(directory) / "log") as running:
        print(running.pid, flush=True)
        signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_server_does_not_outlive_who_measures_it(number: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", MEASURING], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=HOME
    )
    with process:
        pid = int(process.stdout.readline())
        process.send_signal(number)
        assert process.wait(20) != 0
    assert is_gone(pid)


def test_who_is_impatient_while_a_server_is_stopped_leaves_it_no_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "import signal; signal.signal(15, signal.SIG_IGN); print(flush=True); signal.pause()"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with process:
        process.stdout.readline()
        wait = process.wait

        def interrupted(seconds: float | None = None) -> int:
            if seconds is not None:
                raise KeyboardInterrupt
            return wait(10)

        monkeypatch.setattr(process, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stop(process)
    assert is_gone(process.pid)


def test_a_version_that_is_no_text_costs_only_the_version(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\nprintf '\\377\\376'\n")
    program.chmod(0o755)
    assert llama_cpp_version(program) == "of an unknown version"
