"""Numbers are read as vLLM reads them."""

from __future__ import annotations

import pytest
from cyclopts import CycloptsError

from app.cli import make_app
from app.human_number import read_number
from app.settings import Settings


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("0", 0), ("8192", 8192), ("-5", -5), (" 8k ", 8000), ("8K", 8192), ("2M", 2 * 2**20), ("2m", 2_000_000)),
        *(("2.5g", 2_500_000_000), ("25.6k", 25_600), ("1G", 2**30), ("1T", 2**40), ("0.001k", 1)),
    ],
)
def test_a_small_letter_is_decimal_and_a_capital_one_binary(text, number):
    assert read_number(text) == number


@pytest.mark.parametrize("text", ["", "k", "8 k", "8kb", "1e3", "2.5", "2.5G", "0x10", "nan", "1_000", "8" * 19, "٨"])
def test_what_is_no_whole_number_is_refused_with_what_would_be(text):
    with pytest.raises(ValueError, match="is no whole number"):
        read_number(text)


def settings(*words: str) -> Settings:
    _, bound, _ = make_app().parse_args(["serve", *words], exit_on_error=False, print_error=False)
    return bound.kwargs["settings"]


def test_flags_take_such_numbers():
    chosen = settings("--max-model-len", "16k", "--kv-cache-memory-bytes", "2G", "--max-num-batched-tokens", "1K")
    assert (chosen.max_model_len, chosen.kv_cache_memory_bytes) == (16_000, 2 * 2**30)
    assert chosen.max_num_batched_tokens == 1024


@pytest.mark.parametrize("value", ["auto", "-1"])
def test_a_length_may_be_left_to_the_model(value):
    assert settings("--max-model-len", value).max_model_len is None


def test_a_wrong_one_is_named_with_its_flag():
    with pytest.raises(CycloptsError, match="--max-model-len: 8q is no whole number: write it as 8192"):
        settings("--max-model-len", "8q")


def test_vllm_s_short_names_are_flags_too():
    chosen = settings("-asc", "2", "-ep", "-n", "2", "-r", "1", "-q", "fp8", "-tp", "2", "--master-addr", "h",
                      "--node-key-file", "/k", "-sc", '{"method": "ngram", "num_speculative_tokens": 2}')  # fmt: skip
    assert (chosen.api_server_count, chosen.enable_expert_parallel, chosen.nnodes, chosen.node_rank) == (2, True, 2, 1)
    assert chosen.quantization == "fp8"
    assert chosen.speculative is not None
