"""Where a server's sampling defaults come from, and what an operator may put in their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.generation_config import generation_config, read_override
from app.model_card import GenerationConfig
from app.seeds import seeds
from app.settings import Settings
from app.template_source import read_template
from protocol.errors import BadRequestError, CheckpointError


def write(directory: Path, text: str) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "generation_config.json").write_text(text)
    return directory


def test_the_checkpoint_s_own_none_or_another_s(tmp_path: Path) -> None:
    own = write(tmp_path / "own", '{"temperature": 0.6, "eos_token_id": 2, "max_new_tokens": 9}')
    other = write(tmp_path / "other", '{"top_k": 5}')
    assert generation_config("auto", None, own) == GenerationConfig(temperature=0.6, max_new_tokens=9)
    assert generation_config("vllm", None, own) == GenerationConfig()
    assert generation_config(str(other), None, own) == GenerationConfig(top_k=5)
    assert generation_config("auto", None, tmp_path) == GenerationConfig()


def test_an_override_goes_before_them_and_leaves_the_rest(tmp_path: Path) -> None:
    own = write(tmp_path / "own", '{"temperature": 0.6, "top_p": 0.9}')
    found = generation_config("auto", '{"temperature": 0.1, "top_p": null}', own)
    assert found == GenerationConfig(temperature=0.1)
    assert generation_config("vllm", '{"min_p": 0.1}', own) == GenerationConfig(min_p=0.1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no json", "JSON"),
        ("[1]", "JSON"),
        ('{"temperature": "hot"}', "temperature"),
        ('{"temperature": 3}', "temperature must be between 0.0 and 2.0, not 3"),
        ('{"top_p": 0}', "top_p"),
        ('{"max_new_tokens": 0}', "max_new_tokens must be at least 1, not 0"),
        ('{"typical_p": 0.5}', "'typical_p'"),
    ],
)
def test_an_override_that_cannot_be_meant_is_refused_before_anything_starts(text: str, said: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        Settings(override_generation_config=text)
    assert "--override-generation-config" in caught.value.message
    assert said in caught.value.message
    assert read_override(None) == {}


def test_a_place_without_a_generation_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="--generation-config /nowhere"):
        generation_config("/nowhere", None, tmp_path)
    with pytest.raises(BadRequestError, match="top_p"):
        generation_config(str(write(tmp_path / "bad", '{"top_p": 7}')), None, tmp_path)


def test_a_template_is_a_file_or_its_own_text(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{{ messages }}\n")
    assert read_template(str(tmp_path / "t.jinja")) == "{{ messages }}\n"
    assert read_template("{% for m in messages %}{% endfor %}") == "{% for m in messages %}{% endfor %}"
    with pytest.raises(CheckpointError, match="--chat-template /nowhere"):
        read_template("/nowhere")


def test_a_server_s_seed_gives_the_same_seeds_again() -> None:
    first, again, other = seeds(7), seeds(7), seeds()
    given = [first() for _ in range(3)]
    assert given == [again() for _ in range(3)]
    assert len({*given, other(), other()}) == 5
    assert all(0 <= seed < 2**63 for seed in given)
