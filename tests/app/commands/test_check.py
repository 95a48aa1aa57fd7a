"""`trillm check` looks at this machine, and at a model that is on its disk."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from app.checkup.finding import Finding, Mark
from app.checkup.listener import Listener
from app.commands.check import look, next_command, not_here, pull_command
from app.own_command import own_command
from app.settings import Settings
from protocol.errors import StartError
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
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))  # read once, from a variable
    return Settings(download_dir=tmp_path / "cache", port=0)


class Prober:
    """Answers as gpu/probe would on a machine in order."""

    def __init__(self) -> None:
        self.asked: list[ProbeAsked] = []

    async def __call__(self, asked: ProbeAsked) -> Probed:
        self.asked.append(asked)
        return probed(fit=None if asked.spec is None else fit())


async def nobody(settings: Settings) -> Listener | None:
    raise AssertionError("the address is free")


async def looked(model: str | None, settings: Settings, prober: Prober) -> dict[str, Finding]:
    return {finding.name: finding for finding in (await look(model, settings, prober, nobody)).findings}


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
        assert told["model"] == not_here(name, settings)
        pull = own_command("pull", name, "--download-dir", str(tmp_path / "cache"))
        assert told["model"].remedy == f"{pull} fetches it"
    assert not (tmp_path / "hub").exists()
    assert not (tmp_path / "cache").exists()


async def test_a_model_whose_download_was_cut_off_is_told_with_how_it_goes_on(
    settings, checkpoint: Path, tmp_path: Path
):
    repository = tmp_path / "hub" / "models--some--model"
    shutil.copytree(checkpoint, repository / "snapshots" / "abc")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    told = await looked("some/model", settings, Prober())
    assert told["model"].mark is Mark.FAIL
    assert "no weights" in told["model"].text
    assert told["model"].remedy.startswith(f"if its download was cut off, {own_command('pull', 'some/model')}")


def test_what_is_to_be_fetched_is_told_with_the_revision_that_was_asked_for():
    assert pull_command("some/model", Settings(revision="v2")) == own_command("pull", "some/model", "--revision", "v2")


async def test_where_a_server_runs_already_another_one_can_run_beside_it(settings):
    async def runs(_: Settings) -> Listener | None:
        return Listener("trillm 1.2.3", is_trillm=True, has_models=True)

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        there = attrs.evolve(settings, port=listener.getsockname()[1])
        seen = await look(None, there, Prober(), runs)
    told = {finding.name: finding for finding in seen.findings}
    assert told["address"].mark is Mark.WARN
    assert "beside the server that runs" in told["models"].text
    assert seen.free_port is not None
    assert next_command(seen, None, Settings(port=there.port)) == own_command("serve", "--port", str(seen.free_port))
    assert next_command(seen, "m", there).endswith(", with the flags that you have given here")


async def test_without_torch_the_rest_is_told_all_the_same(settings):
    async def has_no_torch(_: ProbeAsked) -> Probed:
        raise StartError("torch cannot be loaded: no libcudart here")

    told = {finding.name: finding for finding in (await look(None, settings, has_no_torch, nobody)).findings}
    assert (told["torch"].mark, told["torch"].text) == (Mark.FAIL, "torch cannot be loaded: no libcudart here")
    assert {"cpu", "address", "limits"} < set(told)
    assert not {"gpu", "kernels", "models"} & set(told)


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
