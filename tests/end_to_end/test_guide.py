"""README and the guide are played as a newcomer would: every block for a shell is run, in order, in a directory like a
fresh checkout; servers go on beside what follows them, until another one takes their port.

Nothing is installed or fetched (those lines are left out), what takes long is only asked for its help, and ports are
free ones. Blocks marked "elsewhere" speak of service managers and networks that a test has not: their files and flags
are looked at.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import httpx
import pytest
import trio
import yaml

from app.checkpoints.default_model import FILE
from app.cli import make_app
from app.settings import default_cache_directory
from tests.helpers.pages import GUIDE, ROOT, Block, Step, blocks, steps
from tests.helpers.ports import lasting_ports
from tests.helpers.tiny_checkpoints import make_checkpoint

PAGES = [ROOT / "README.md", *sorted(GUIDE.glob("*.md"))]
PORTS = re.compile(r"\b(8000|8001|8002|14580)\b")
INSTALLS = re.compile(r"^(?:\S*python -m pip|pip|sudo apt-get|scripts/install)\b.*\n?", re.MULTILINE)
TAKES_LONG = re.compile(r"^(scripts/(?:test|bench|chaos|gpu_check))\b.*$", re.MULTILINE)
EXECUTABLE = re.compile(r"(?:^|/)(?:scripts/[a-z_]+|trillm)$")
Terminal = tuple[Step, subprocess.Popen[bytes], Path]
"""What was typed, what became of it, and the file that it writes to."""
TYPED = b"y\n"
"""For who asks."""
SECONDS = 60
"""For one block; a hung one is told by name."""


@attrs.define
class Reader:
    """Somebody with terminals in a checkout, and a home directory in which a model lies."""

    checkout: Path
    home: Path
    ports: dict[str, str]
    servers: dict[int, Terminal] = attrs.field(factory=dict)
    """By port; those that have none by negative numbers."""

    @property
    def environment(self) -> dict[str, str]:
        here = f"http://127.0.0.1:{self.ports['8000']}"
        return os.environ | {
            "HOME": str(self.home),
            "XDG_CACHE_HOME": str(default_cache_directory().parent),
            "TRILLM_PORT": self.ports["8000"],
            "TRILLM_MASTER_PORT": self.ports["29501"],
            "TRILLM_SEED": "0",
            "TRILLM_RESPONSES_STORE_PATH": str(self.home / "responses.sqlite3"),
            "OPENAI_BASE_URL": f"{here}/v1",
            "COLUMNS": "100",
        }

    def with_free_ports(self, script: str) -> str:
        return PORTS.sub(lambda found: self.ports[found[1]], script)

    async def read(self, block: Block) -> None:
        match block.language, block.label:
            case "sh", "":
                for step in steps(block.text):
                    await (
                        self.serve(step)
                        if step.is_server
                        else self.run(["bash", "-euo", "pipefail", "-c"], step.script)
                    )
            case "python", "":
                await self.run([sys.executable, "-c"], block.text)
            case "python", name:
                (self.checkout / name).write_text(block.text)

    async def serve(self, step: Step) -> None:
        """In a terminal of its own. Who had the port before is stopped first."""
        number = len(self.servers)
        earlier = self.servers.pop(step.port, None) if not step.waits_for_another else None
        if earlier is not None:
            await self.until_ready(earlier)
            await self.stop(*earlier)
        said = self.home / f"terminal-{number}"
        with said.open("wb") as terminal:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {self.with_free_ports(step.script)}"],
                cwd=self.checkout, env=self.environment, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal,
            )  # fmt: skip
        self.servers[-number - 1 if step.waits_for_another else step.port] = (step, process, said)

    async def until_ready(self, server: Terminal) -> None:
        step, process, said = server
        url = f"http://127.0.0.1:{self.ports[str(step.port)]}/ready"
        with trio.fail_after(SECONDS):
            while not step.waits_for_another:
                assert process.poll() is None, f"{step.script} ended: {await trio.Path(said).read_text()}"
                try:
                    async with httpx.AsyncClient() as client:
                        if (await client.get(url)).status_code == 200:
                            break
                except httpx.TransportError:
                    pass
                await trio.sleep(0.05)

    async def until_all_are_ready(self) -> None:
        for server in self.servers.values():
            await self.until_ready(server)

    async def run(self, interpreter: list[str], script: str) -> None:
        """In one more terminal."""
        await self.until_all_are_ready()
        script = TAKES_LONG.sub(r"\1 --help", INSTALLS.sub("", script))
        with trio.fail_after(SECONDS):
            done = await trio.run_process(
                [*interpreter, self.with_free_ports(script)], stdin=TYPED, cwd=self.checkout, env=self.environment,
                capture_stdout=True, capture_stderr=True, check=False,
            )  # fmt: skip
        printed = f"{script}\n{done.stdout.decode()}\n{done.stderr.decode()}"
        assert done.returncode == 0, printed
        assert "Traceback" not in printed, printed

    async def stop(self, step: Step, process: subprocess.Popen[bytes], said: Path) -> None:
        """As by Ctrl-C."""
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        with trio.move_on_after(30):
            while process.poll() is None:
                await trio.sleep(0.02)
        log = await trio.Path(said).read_text()
        assert process.poll() == 0, f"{step.script}: {process.poll()}\n{log}"
        assert "Traceback" not in log


def link_environment(checkout: Path) -> None:
    """A `.venv` that scripts/install takes for done, with any extra: it would otherwise install this directory into the
    real one."""
    (checkout / ".venv").mkdir()
    for entry in Path(sys.prefix).iterdir():
        if not entry.name.startswith("installed"):
            (checkout / ".venv" / entry.name).symlink_to(entry)
    wanted = (ROOT / "pyproject.toml").read_bytes() + (ROOT / "scripts" / "constraints.txt").read_bytes()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for stamp in ("installed", *(f"installed-{extra}" for extra in extras)):
        (checkout / ".venv" / stamp).write_text(f"{hashlib.sha256(wanted).hexdigest()}  -\n")


@asynccontextmanager
async def open_reader(directory: Path) -> AsyncIterator[Reader]:
    checkout, home = directory / "trillm", directory / "home"
    models = home / "models" / "Qwen2.5-0.5B-Instruct"
    models.mkdir(parents=True)
    checkout.mkdir()
    make_checkpoint(models, "qwen2_tied")
    (home / ".curlrc").write_text("silent\nshow-error\nfail-with-body\nmax-time = 50\n")
    for entry in ROOT.iterdir():
        if entry.name not in (".git", ".venv", "key", "dice.py"):
            (checkout / entry.name).symlink_to(entry)
    link_environment(checkout)
    names = ("8000", "8001", "8002", "14580", "29501")
    reader = Reader(checkout, home, dict(zip(names, map(str, lasting_ports(len(names))), strict=True)))
    try:
        yield reader
        for server in reader.servers.values():
            await reader.stop(*server)
    finally:
        for _, process, _ in reader.servers.values():
            process.kill()
            process.wait()


@pytest.mark.process
@pytest.mark.parametrize("extra", ["", "bench", "test"])
def test_nothing_that_a_page_runs_installs_into_the_real_environment(extra, tmp_path):
    (tmp_path / "scripts").mkdir()
    for name in ("pyproject.toml", "scripts/constraints.txt", "scripts/install"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    link_environment(tmp_path)
    done = subprocess.run(
        ["bash", tmp_path / "scripts" / "install", *([extra] if extra else [])],
        env=os.environ | {"PYTHON": "/bin/false"}, capture_output=True, text=True, timeout=10, check=True,
    )  # fmt: skip
    assert done.stderr == ""


@pytest.mark.process
@pytest.mark.model
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
async def test_what_a_page_has_its_reader_type_works(page, tmp_path):
    if not (default_cache_directory() / "default" / FILE).is_file():
        pytest.skip("the default model is not in the cache: any start of the server fetches it")
    async with open_reader(tmp_path) as reader:
        for block in blocks(page):
            await reader.read(block)
        await reader.until_all_are_ready()


def every_block() -> list[tuple[str, Block]]:
    return [(page.stem, block) for page in PAGES for block in blocks(page)]


def test_blocks_are_what_something_here_reads():
    kinds = {(block.language, block.label) for _, block in every_block() if block.language != "python"}

    assert kinds <= {("sh", ""), ("sh", "elsewhere"), ("toml", ""), ("json", ""), ("yaml", ""), ("text", "")}


@pytest.mark.parametrize(
    "text", [block.text for _, block in every_block() if block.language == "toml"]
)  # fmt: skip
def test_a_file_of_settings_that_is_shown_can_be_given(text, tmp_path, monkeypatch):
    (tmp_path / "trillm.toml").write_text(text)
    monkeypatch.setenv("TRILLM_CONFIG", str(tmp_path / "trillm.toml"))
    _, bound, _ = make_app().parse_args(["serve"], exit_on_error=False, print_error=False)

    assert set(tomllib.loads(text)) - {"model"} <= {
        name.replace("_", "-") for name in attrs.asdict(bound.kwargs["settings"])
    }


def test_json_and_yaml_that_is_shown_can_be_read():
    for _, block in every_block():
        if block.language == "json":
            json.loads(block.text)
        elif block.language == "yaml":
            yaml.safe_load(block.text)


@pytest.mark.parametrize(
    "line",
    [
        line
        for _, block in every_block()
        if (block.language, block.label) == ("sh", "elsewhere")
        for line in block.text.replace("\\\n", " ").splitlines()
        if line and not line.startswith("#")
    ],
)
def test_what_is_typed_elsewhere_names_files_and_flags_that_there_are(line):
    words = shlex.split(line, comments=True)
    for word in words:
        if re.match(r"^(?:/opt/trillm/)?(?:scripts|app)/", word):
            assert (ROOT / word.removeprefix("/opt/trillm/")).exists(), word
    at = next((at for at, word in enumerate(words) if re.search(r"(?:^|/)trillm$|scripts/serve$", word)), None)
    if at is None or words[at].startswith("/etc/"):
        return
    arguments = (["serve"] if words[at].endswith("serve") else []) + words[at + 1 :]
    if arguments and not {"|", ">", "&&", "/opt/trillm"} & {*arguments}:
        arguments = ["0" if word == "K" else word for word in arguments]
        make_app().parse_args(arguments, exit_on_error=False, print_error=False)
