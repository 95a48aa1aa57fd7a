"""The example files in scripts/deploy say what there is: each line of them can be used as it stands."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import attrs
import httpx
import pytest
from hypercorn.config import Config

from app.cli import make_app
from app.listening import KEEP_ALIVE_SECONDS
from app.proxy.settings import ProxySettings
from app.settings import Settings
from tests.helpers.ports import lasting_ports
from tests.helpers.server import READY, open_process

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "scripts" / "deploy"
TOML = (DEPLOY / "trillm.toml").read_text()
ENVIRONMENT = (DEPLOY / "environment").read_text()
VARIABLES = {"TRILLM_CONFIG", "TRILLM_MODEL", *(f"TRILLM_{field.name.upper()}" for field in attrs.fields(Settings))}
OF_THE_PROXY = {f"TRILLM_{field.name.upper()}" for field in attrs.fields(ProxySettings)}
OWN_NAME = {"VLLM_API_KEY"}


def uncommented(text: str, begins: str) -> str:
    """With its examples."""
    return re.sub(rf"^# ?({begins})", r"\1", text, flags=re.MULTILINE)


def served(monkeypatch: pytest.MonkeyPatch, **environment: str) -> tuple[str | None, Settings]:
    """What `trillm serve` without arguments makes of it. Raises for what sets nothing."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    _, bound, _ = make_app().parse_args(["serve"], exit_on_error=False, print_error=False)
    return (*bound.args, None)[0], bound.kwargs.get("settings") or Settings()


def test_what_the_file_sets_are_the_defaults(monkeypatch):
    _, settings = served(monkeypatch, TRILLM_CONFIG=str(DEPLOY / "trillm.toml"))
    assert settings == Settings()


def test_every_example_in_the_file_is_a_setting(monkeypatch, tmp_path):
    (tmp_path / "all.toml").write_text(uncommented(TOML, r"[a-z0-9-]+ = "))
    keys = tomllib.loads((tmp_path / "all.toml").read_text()).keys()
    model, settings = served(monkeypatch, TRILLM_CONFIG=str(tmp_path / "all.toml"))
    assert len(keys) > 25
    assert keys - {"model"} <= {name.replace("_", "-") for name in attrs.asdict(settings)}
    assert model == "/srv/models/Qwen2.5-0.5B-Instruct"
    assert settings.served_model_name == ("qwen", "gpt-4o-mini")


def test_every_example_in_the_environment_is_a_variable_and_can_be_its_value(monkeypatch, tmp_path):
    lines = re.findall(r"^#([A-Z_]+)=(.*)$", ENVIRONMENT, re.MULTILINE)
    assert not re.search(r"^[^#\n]", ENVIRONMENT, re.MULTILINE), "as it stands it sets nothing"
    assert {name for name, _ in lines} <= VARIABLES | OWN_NAME
    for name, value in lines:
        if name not in ("TRILLM_HOST", "TRILLM_CONFIG", "VLLM_API_KEY"):
            served(monkeypatch, **{name: value.removeprefix("'").removesuffix("'")})
    served(monkeypatch, VLLM_API_KEY='["first", "second"]', TRILLM_HOST="0.0.0.0")


def test_every_variable_that_a_file_for_operators_names_is_a_setting():
    files = [ROOT / "scripts" / "trillm.service", ROOT / "scripts" / "trillm.socket", ROOT / "app" / "guide"]
    texts = [path for file in [*files, DEPLOY] for path in ([file] if file.is_file() else file.rglob("*"))]
    for path in texts:
        if path.is_file() and path.suffix != ".png":
            named = set(re.findall(r"\bTRILLM_[A-Z_]*[A-Z]\b", path.read_text()))
            assert named <= VARIABLES | OF_THE_PROXY | {"TRILLM_API_KEY"}, path


def test_hypercorn_knows_every_key_of_its_file():
    path = DEPLOY / "hypercorn.toml"
    config = Config.from_toml(path)
    assert all(hasattr(Config(), key) for key in tomllib.loads(uncommented(path.read_text(), r"[a-z_]+ = ")))
    assert (config.bind, config.worker_class, config.workers) == (["127.0.0.1:8000"], "trio", 1)
    assert (config.graceful_timeout, config.keep_alive_timeout) == (Settings().shutdown_timeout, KEEP_ALIVE_SECONDS)


@pytest.mark.process
async def test_hypercorn_serves_by_its_file(checkpoint, tmp_path):
    [port] = lasting_ports(1)
    text = (DEPLOY / "hypercorn.toml").read_text().replace(":8000", f":{port}")
    (tmp_path / "hypercorn.toml").write_text(text)
    command = [sys.executable, "-m", "hypercorn", "--config", str(tmp_path / "hypercorn.toml"), "app:create_app()"]
    environment = {"TRILLM_MODEL": str(checkpoint), "TRILLM_LOAD_FORMAT": "dummy", "PYTHONPATH": str(ROOT)}
    async with open_process(command, **environment) as server:
        await server.until_said(READY)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
            assert (await http.post("/v1/completions", json={"prompt": "once", "max_tokens": 3})).status_code == 200
            assert (await http.get("/ready")).status_code == 200
