from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from app.checkpoints.inspect import describe
from protocol.errors import CheckpointError

TOKENS = {"<s>": 0, "</s>": 1, "<|eot|>": 2, "a": 3}
CONFIG = {"architectures": ["LlamaForCausalLM"], "vocab_size": 8, "max_position_embeddings": 64}


def write(directory: Path, **files: object) -> Path:
    """config.json and tokenizer.json, and what is given, as NAME=content (JSON, a text, or None for no file)."""
    tokenizer = Tokenizer(models.BPE(TOKENS, []))
    for name, content in {"config": CONFIG, "tokenizer": tokenizer.to_str(), **files}.items():
        if content is not None:
            text = content if isinstance(content, str) else json.dumps(content)
            (directory / f"{name}.json").write_text(text)
    return directory


def test_a_bare_directory_is_described(tmp_path: Path):
    description = describe(write(tmp_path))
    assert description.architecture == "LlamaForCausalLM"
    assert (description.vocab_size, description.tokenizer_size, description.max_position_embeddings) == (8, 4, 64)
    assert description.eos_token_ids == ()
    assert description.bos_token_id is None
    assert description.chat_template is None
    assert description.tokenizer == tmp_path / "tokenizer.json"


@pytest.mark.parametrize(
    "sizes",
    [
        {"vocab_size": 8, "n_positions": 64},
        {"text_config": {"vocab_size": 8, "max_position_embeddings": 64}},
        {"vocab_size": 9, "text_config": {"vocab_size": 8, "max_position_embeddings": 64}},
    ],
)
def test_sizes_are_found_where_other_kinds_of_models_have_them(sizes: dict[str, object], tmp_path: Path):
    description = describe(write(tmp_path, config={"architectures": ["GPT2LMHeadModel"], **sizes}))
    assert (description.vocab_size, description.max_position_embeddings) == (8, 64)


def test_a_text_model_beside_others_may_leave_its_sizes_to_its_class(tmp_path: Path):
    description = describe(write(tmp_path, config={"architectures": ["Two"], "text_config": {"hidden_size": 4}}))
    assert (description.vocab_size, description.max_position_embeddings) == (None, None)


def test_ids_that_end_an_answer_are_collected_from_all_three_files(tmp_path: Path):
    description = describe(
        write(
            tmp_path,
            config=CONFIG | {"eos_token_id": 1},
            generation_config={"eos_token_id": [2, 1]},
            tokenizer_config={"eos_token": {"content": "a", "lstrip": False}},
        )
    )
    assert description.eos_token_ids == (2, 1, 3)


def test_a_list_of_ids_in_the_configuration_counts_too(tmp_path: Path):
    assert describe(write(tmp_path, config=CONFIG | {"eos_token_id": [1, 2]})).eos_token_ids == (1, 2)


def test_special_tokens_come_from_either_file_and_give_the_bos_id(tmp_path: Path):
    config = CONFIG | {"bos_token_id": 7}
    description = describe(write(tmp_path, config=config, special_tokens_map={"bos_token": "<s>", "eos_token": None}))
    assert (description.special_tokens, description.bos_token_id) == ({"bos_token": "<s>"}, 0)
    assert describe(write(tmp_path, config=config, special_tokens_map={})).bos_token_id == 7


def test_chat_templates_come_as_text_or_by_name_or_as_a_file_which_wins(tmp_path: Path):
    assert describe(write(tmp_path, tokenizer_config={"chat_template": "T"})).chat_template == "T"
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "U"}]
    write(tmp_path, tokenizer_config={"chat_template": named})
    assert describe(tmp_path).chat_templates == {"default": "D", "tool_use": "U"}
    (tmp_path / "chat_template.jinja").write_text("J")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("R")
    assert describe(tmp_path).chat_templates == {"default": "J", "tool_use": "U", "rag": "R"}


REFUSED: list[tuple[dict[str, object], str]] = [
    ({"config": None}, "config.json: the file is missing"),
    ({"config": "{"}, "config.json: not a valid JSON object"),
    ({"config": "[]"}, "config.json: not a valid JSON object"),
    ({"config": {"vocab_size": 8, "max_position_embeddings": 8}}, "config.json: neither architectures nor model_type"),
    ({"config": CONFIG | {"vocab_size": None}}, "config.json: vocab_size is None"),
    ({"config": CONFIG | {"max_position_embeddings": 0}}, "config.json: max_position_embeddings is 0"),
    ({"config": CONFIG | {"eos_token_id": "2"}}, "config.json: eos_token_id is '2'"),
    ({"generation_config": {"eos_token_id": [1, True]}}, "generation_config.json: eos_token_id is [1, True]"),
    ({"tokenizer": None}, "tokenizer.json: the file is missing"),
    ({"tokenizer": "{}"}, "tokenizer.json: not a valid tokenizer.json"),
    ({"tokenizer_config": {"eos_token": "<none>"}}, "tokenizer_config.json: eos_token '<none>' is not a token"),
    ({"tokenizer_config": {"chat_template": 3}}, "tokenizer_config.json: chat_template is neither"),
    ({"tokenizer_config": {"chat_template": [{"name": "x"}]}}, "tokenizer_config.json: chat_template has an entry"),
]


@pytest.mark.parametrize(("files", "expected"), REFUSED, ids=[expected for _, expected in REFUSED])
def test_a_missing_or_invalid_file_is_refused_by_name(files: dict[str, object], expected: str, tmp_path: Path):
    with pytest.raises(CheckpointError) as caught:
        describe(write(tmp_path, **files))
    assert expected in caught.value.message
    assert str(tmp_path) in caught.value.message


def test_a_directory_with_only_a_sentencepiece_model_says_what_to_do(tmp_path: Path):
    write(tmp_path, tokenizer=None)
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(CheckpointError, match="must be converted first"):
        describe(tmp_path)
