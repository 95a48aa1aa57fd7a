"""guidellm puts a load on the server, where it is installed: it brings some 600 MB, so nothing here installs it.

In an environment of its own, whose bin directory is on the PATH: pip install -c scripts/constraints.txt guidellm
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest
import trio

from tests.clients.client_code import SECONDS
from tests.helpers.server import open_server

GUIDELLM = shutil.which("guidellm")

pytestmark = [
    pytest.mark.clients,
    pytest.mark.process,
    pytest.mark.skipif(GUIDELLM is None, reason="guidellm is not installed"),
]


async def test_each_request_of_its_load_is_answered(checkpoint, tmp_path):
    async with open_server(checkpoint, "--served-model-name", "tiny") as server:
        told = tmp_path / "benchmarks.json"
        command = [
            GUIDELLM, "benchmark", "--target", server.url, "--model", "tiny", "--processor", str(checkpoint),
            "--data", "prompt_tokens=64,output_tokens=16", "--rate-type", "constant", "--rate", "3",
            "--max-requests", "9", "--disable-progress", "--output-path", str(told),
        ]  # fmt: skip
        with (tmp_path / "said").open("wb") as said, trio.fail_after(SECONDS):  # which ends the process
            ended = await trio.run_process(
                command, stdout=said, stderr=subprocess.STDOUT, env=os.environ | {"HF_HUB_OFFLINE": "1"}, check=False
            )
        assert ended.returncode == 0, (tmp_path / "said").read_text()[-2000:]
        [benchmark] = json.loads(told.read_text())["benchmarks"]
        assert len(benchmark["requests"]["errored"]) == 0
        completed = benchmark["requests"]["successful"]
        assert len(completed) == 9
        assert all(request["output_tokens"] == 16 for request in completed)
