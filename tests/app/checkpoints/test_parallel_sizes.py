"""What cannot lie over ranks is known by config.json alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.checkpoints.parallel_sizes import check_sizes
from protocol.errors import CheckpointError, StartError
from protocol.parallel import ParallelSpec

SIZES = {"num_attention_heads": 9, "num_key_value_heads": 3, "num_hidden_layers": 30}


def written(directory: Path, config: dict) -> Path:
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize("parallel", [ParallelSpec(), ParallelSpec(3), ParallelSpec(9, 30)])
def test_what_divides_is_taken(tmp_path, parallel):
    check_sizes(written(tmp_path, SIZES), parallel)


@pytest.mark.parametrize(
    ("parallel", "said"),
    [
        (ParallelSpec(2), "9 query and 3 KV heads: --tensor-parallel-size 2 does not divide them; 1, 3 and 9 do"),
        (ParallelSpec(1, 31), "--pipeline-parallel-size 31 is above the model's 30 layers"),
        (ParallelSpec(3, experts=True), "--enable-expert-parallel is for models with experts, and this one has none"),
    ],
)
def test_what_does_not_is_refused_with_what_would(tmp_path, parallel, said):
    for config in (SIZES, {"text_config": SIZES}):
        with pytest.raises(StartError) as refused:
            check_sizes(written(tmp_path, config), parallel)
        assert said in refused.value.message


@pytest.mark.parametrize("key", ["num_experts", "num_local_experts"])
def test_experts_are_counted_by_either_name(tmp_path, key):
    check_sizes(written(tmp_path, SIZES | {key: 8}), ParallelSpec(3, experts=True))


@pytest.mark.parametrize("missing", ["num_attention_heads", "num_hidden_layers"])
def test_what_config_json_does_not_say_is_left_to_the_engine(tmp_path, missing):
    check_sizes(written(tmp_path, {key: size for key, size in SIZES.items() if key != missing}), ParallelSpec(2))


def test_what_is_no_number_is_left_to_the_engine(tmp_path):
    check_sizes(written(tmp_path, SIZES | {"num_attention_heads": True}), ParallelSpec(2))


def test_a_config_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read"):
        check_sizes(tmp_path, ParallelSpec(2))
