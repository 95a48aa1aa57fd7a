"""What the app has to know of a model, read from its checkpoint directory. Used at start-up, for every model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import msgspec
from tokenizers import Tokenizer

from protocol.errors import CheckpointError

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


@attrs.frozen
class Description:
    """A model as the HTTP side sees it."""

    directory: Path
    architecture: str
    """The class name in config.json, or else its model_type."""
    vocab_size: int | None
    """Rows of the embedding: token ids from 0 up to this are computable. None: config.json leaves it to the class."""
    tokenizer_size: int
    """The highest id that the tokeniser knows, plus one; the embedding is often padded beyond."""
    max_position_embeddings: int | None
    eos_token_ids: tuple[int, ...]
    """Every id that ends an answer, the most specific file's first."""
    bos_token_id: int | None
    special_tokens: dict[str, str]
    """The texts of bos_token, eos_token, unk_token and pad_token, as far as the model has them: for templates."""
    chat_templates: dict[str, str]
    """By name; the usual one is called "default"."""
    tokenizer: Path

    @property
    def chat_template(self) -> str | None:
        """The default template; None means that the model is not made for chat."""
        return self.chat_templates.get("default")


def describe(directory: Path) -> Description:
    """Read config.json, tokenizer.json, and what there is of the other configurations and chat templates.

    Raises CheckpointError naming the file that is missing or invalid, and the key.
    """
    config = _read_json(directory / "config.json", needed=True)
    sizes = _text_sizes(directory / "config.json", config)
    generation = _read_json(directory / "generation_config.json")
    tokenizer_config = _read_json(directory / "tokenizer_config.json")
    tokens_map = _read_json(directory / "special_tokens_map.json")
    tokenizer = _read_tokenizer(directory / "tokenizer.json")
    special = {
        name: text
        for name in SPECIAL_TOKENS
        if (text := _token_text(tokenizer_config.get(name)) or _token_text(tokens_map.get(name)))
    }
    bos_ids = _ids(directory / "config.json", config, "bos_token_id")
    bos = tokenizer.token_to_id(special["bos_token"]) if "bos_token" in special else next(iter(bos_ids), None)
    return Description(
        directory=directory,
        architecture=_architecture(directory / "config.json", config),
        vocab_size=sizes["vocab_size"],
        tokenizer_size=max(tokenizer.get_vocab().values(), default=-1) + 1,
        max_position_embeddings=sizes["max_position_embeddings"],
        eos_token_ids=_eos_token_ids(directory, config, generation, special.get("eos_token"), tokenizer),
        bos_token_id=bos,
        special_tokens=special,
        chat_templates=_chat_templates(directory, tokenizer_config),
        tokenizer=directory / "tokenizer.json",
    )


def _read_json(path: Path, needed: bool = False) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError as error:
        if not needed:
            return {}
        raise CheckpointError(f"{path}: the file is missing; a checkpoint directory needs it") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{path}: not a valid JSON object: {error}") from error


def _read_tokenizer(path: Path) -> Tokenizer:
    if not path.is_file():
        raise CheckpointError(
            f"{path}: the file is missing; a model with only a sentencepiece tokenizer.model must be converted first"
            if (path.parent / "tokenizer.model").is_file()
            else f"{path}: the file is missing; a checkpoint directory needs it"
        )
    try:
        return Tokenizer.from_file(str(path))
    # The library raises plain Exception for whatever is wrong with the file.
    except Exception as error:
        raise CheckpointError(f"{path}: not a valid tokenizer.json: {error}") from error


def _architecture(path: Path, config: dict[str, Any]) -> str:
    names = config.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        return names[0]
    if isinstance(kind := config.get("model_type"), str):
        return kind
    raise CheckpointError(f"{path}: neither architectures nor model_type says what model this is")


def _text_sizes(path: Path, config: dict[str, Any]) -> dict[str, int | None]:
    """What config.json says of the text model: at its top, by GPT-2's names, or, with text_config, beside others."""
    text = config.get("text_config")
    found = {"max_position_embeddings": config.get("n_positions")} | config | (text if isinstance(text, dict) else {})
    return {
        key: None if isinstance(text, dict) and found.get(key) is None else _positive(path, found, key)
        for key in ("vocab_size", "max_position_embeddings")
    }


def _positive(path: Path, config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise CheckpointError(f"{path}: {key} is {value!r}, expected a positive whole number")
    return value


def _ids(path: Path, config: dict[str, Any], key: str) -> list[int]:
    """One id or a list of ids; none if the key is missing or null."""
    value = config.get(key)
    values = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in values):
        raise CheckpointError(f"{path}: {key} is {value!r}, expected a token id or a list of token ids")
    return values


def _token_text(token: object) -> str | None:
    """A special token is a text, or an object with its text as `content`, or null."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) and token else None


def _eos_token_ids(
    directory: Path, config: dict[str, Any], generation: dict[str, Any], eos: str | None, tokenizer: Tokenizer
) -> tuple[int, ...]:
    """All that any of the three files names: to miss one means answers that never end."""
    ids = _ids(directory / "generation_config.json", generation, "eos_token_id")
    ids = ids + _ids(directory / "config.json", config, "eos_token_id")
    if eos is not None:
        index = tokenizer.token_to_id(eos)
        if index is None:
            raise CheckpointError(
                f"{directory / 'tokenizer_config.json'}: eos_token {eos!r} is not a token of tokenizer.json"
            )
        ids.append(index)
    return tuple(dict.fromkeys(ids))


def _chat_templates(directory: Path, tokenizer_config: dict[str, Any]) -> dict[str, str]:
    """chat_template.jinja comes before what tokenizer_config.json has, a text or a list of named texts."""
    path = directory / "tokenizer_config.json"
    templates: dict[str, str] = {}
    given = tokenizer_config.get("chat_template")
    if isinstance(given, str):
        templates["default"] = given
    elif isinstance(given, list):
        for entry in given:
            match entry:
                case {"name": str(name), "template": str(text)}:
                    templates[name] = text
                case _:
                    raise CheckpointError(f"{path}: chat_template has an entry without name and template")
    elif given is not None:
        raise CheckpointError(f"{path}: chat_template is neither a text nor a list of named texts")
    files = {"default": directory / "chat_template.jinja"}
    files |= {file.stem: file for file in sorted((directory / "additional_chat_templates").glob("*.jinja"))}
    for name, file in files.items():
        if file.is_file():
            templates[name] = _read_text(file)
    return templates


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
