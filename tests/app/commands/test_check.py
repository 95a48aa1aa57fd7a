"""`trillm check` looks at this machine, and at a model that is on its disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.checkup.finding import Finding, Mark
from app.commands.check import look, not_here
from app.settings import Settings
from protocol.machine import ProbeAsked, Probed
from tests.helpers.machines import fit, probed

RUN = """
import sys
from app import cli
status = cli.run(sys.argv[1:])
print(*sys.modules, file=sys.stderr)
sys.exit(status)
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Of a server with a cache of its own."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return Settings(download_dir=tmp_path / "cache", port=0)


class Prober:
    """Answers as gpu/probe would on a machine in order."""

    def __init__(self) -> None:
        self.asked: list[ProbeAsked] = []

    async def __call__(self, asked: ProbeAsked) -> Probed:
        self.asked.append(asked)
        return probed(fit=None if asked.spec is None else fit())


async def looked(model: str | None, settings: Settings, prober: Prober) -> dict[str, Finding]:
    return {finding.name: finding for finding in await look(model, settings, prober)}


async def test_without_a_model_it_tells_what_would_fit(settings):
    told = await looked(None, settings, prober := Prober())
    assert list(told)[-1] == "models"
    assert prober.asked == [ProbeAsked(str(settings.cache_directory), None)]


async def test_a_model_that_is_not_there_is_a_failure(settings, tmp_path: Path):
    told = await looked(str(tmp_path / "gone.gguf"), settings, prober := Prober())
    assert (told["model"].mark, told["model"].text) == (
        Mark.FAIL,
        f"{tmp_path / 'gone.gguf'}: no such file or directory",
    )
    assert prober.asked[0].spec is None


async def test_a_model_whose_files_are_not_whole_is_a_failure(settings, checkpoint: Path):
    told = await looked(str(checkpoint), settings, Prober())
    assert told["model"].mark is Mark.FAIL
    assert "no weights" in told["model"].text


async def test_a_model_of_the_hub_that_is_not_fetched_yet_is_not_fetched(settings, tmp_path: Path):
    for name in ("some/model", "SmolLM2-135M-Instruct"):
        told = await looked(name, settings, Prober())
        assert told["model"] == not_here(name)
        assert told["model"].remedy == f"trillm pull {name} fetches it"
    assert not (tmp_path / "hub").exists()
    assert not (tmp_path / "cache").exists()


@pytest.mark.process
def test_a_model_is_looked_at_in_processes_of_which_this_one_loads_no_torch(tmp_path: Path):
    from tests.helpers.tiny_checkpoints import make_checkpoint

    make_checkpoint(tmp_path / "m", "llama")
    flags = ["--port", "0", "--max-model-len", "32", "--device", "cpu", "--json"]
    command = [sys.executable, "-c", RUN, "check", str(tmp_path / "m"), *flags]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    told = json.loads(done.stdout)
    found = {finding["name"]: finding for finding in told["findings"]}
    assert (done.returncode, told["ok"]) == (0, True), told
    assert found["model"]["text"].startswith("LlamaForCausalLM, ")
    assert found["context"]["text"].startswith("32 tokens a request")
    assert not (tmp_path / "cache").exists()
    assert not {"torch", "transformers", "gpu"} & set(done.stderr.split())
