"""A conversation to token ids, with the checkpoint's chat template, as transformers renders it.

Text that comes from a client stays text: where it spells a control token, a private-use character stands for the
spelling while the template runs, and the spelling is encoded as ordinary characters afterwards. Used by the chat and
tokenize routes.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import msgspec
import trio
from attrs import frozen
from jinja2.sandbox import ImmutableSandboxedEnvironment

from app.conversation import Conversation
from app.tokenizer import Tokenizer
from protocol.errors import BadRequestError, CheckpointError

_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
_INLINE_CHARACTERS = 20_000
_PRIVATE_USE = range(0xF0000, 0xFFFFD)


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks what the model says, for training; here the body is simply rendered."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class _Dict:
    """`dict(...)` in a template, without the class object that would lead out of the sandbox."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes for HTML, which no model has been trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = _Dict()
    return environment


@frozen
class _Hidden:
    """A conversation's plain data with control tokens' spellings hidden, and what stands for what."""

    variables: dict[str, Any]
    spellings: dict[str, str]
    """Private-use character to the spelling it stands for."""


class ChatTemplate:
    """Immutable after construction, so that worker threads may share it."""

    def __init__(self, source: str, special_tokens: dict[str, str] | None = None) -> None:
        """`special_tokens` are the template's variables bos_token, eos_token, … Raises CheckpointError."""
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise CheckpointError(f"the chat template is no valid Jinja (line {error.lineno}): {error}") from error
        self._special_tokens = special_tokens or {}
        self._limiter = trio.CapacityLimiter(2)

    @classmethod
    def from_checkpoint(cls, checkpoint: Path) -> ChatTemplate | None:
        """From chat_template.jinja or tokenizer_config.json; None if the checkpoint has no template."""
        config = _tokenizer_config(checkpoint)
        beside = checkpoint / "chat_template.jinja"
        source = beside.read_text(encoding="utf-8") if beside.exists() else _default_template(config.chat_template)
        return None if source is None else cls(source, config.special_tokens)

    async def encode(self, conversation: Conversation, tokenizer: Tokenizer) -> list[int]:
        """The prompt's token ids. Raises BadRequestError with the template's own message."""
        if conversation.num_characters <= _INLINE_CHARACTERS:
            return self.encode_sync(conversation, tokenizer)
        return await trio.to_thread.run_sync(self.encode_sync, conversation, tokenizer, limiter=self._limiter)

    def encode_sync(self, conversation: Conversation, tokenizer: Tokenizer) -> list[int]:
        hidden = _hide(conversation, tokenizer)
        text = self._render(conversation, hidden.variables)
        if not hidden.spellings:
            return tokenizer.encode(text, add_special_tokens=conversation.add_special_tokens)
        return tokenizer.encode_parts(text, hidden.spellings)

    def render(self, conversation: Conversation) -> str:
        """The prompt's text, with everything in it as the client wrote it."""
        return self._render(conversation, conversation.variables())

    def _render(self, conversation: Conversation, variables: dict[str, Any]) -> str:
        if conversation.continue_final_message:
            _mark_end(variables["messages"][-1])
        try:
            text = self._template.render({**self._special_tokens, **variables})
        except jinja2.TemplateError as error:
            raise BadRequestError(f"The chat template refuses these messages: {error}", param="messages") from error
        except RecursionError as error:
            raise BadRequestError("These messages are nested too deep for the chat template") from error
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
            raise BadRequestError(
                f"The chat template cannot render these messages: {error}", param="messages"
            ) from error
        return _cut_at_mark(text) if conversation.continue_final_message else text


class _SpecialToken(msgspec.Struct, frozen=True):
    content: str


class _NamedTemplate(msgspec.Struct, frozen=True):
    name: str
    template: str


class _TokenizerConfig(msgspec.Struct, frozen=True):
    chat_template: str | list[_NamedTemplate] | None = None
    bos_token: str | _SpecialToken | None = None
    eos_token: str | _SpecialToken | None = None
    unk_token: str | _SpecialToken | None = None
    pad_token: str | _SpecialToken | None = None

    @property
    def special_tokens(self) -> dict[str, str]:
        found = {
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
            "unk_token": self.unk_token,
            "pad_token": self.pad_token,
        }
        return {
            name: token.content if isinstance(token, _SpecialToken) else token
            for name, token in found.items()
            if token is not None
        }


def read_special_tokens(checkpoint: Path) -> dict[str, str]:
    """bos_token, eos_token, … of tokenizer_config.json, as far as it names them."""
    return _tokenizer_config(checkpoint).special_tokens


def _tokenizer_config(checkpoint: Path) -> _TokenizerConfig:
    path = checkpoint / "tokenizer_config.json"
    if not path.exists():
        return _TokenizerConfig()
    try:
        return msgspec.json.decode(path.read_bytes(), type=_TokenizerConfig)
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _default_template(found: str | list[_NamedTemplate] | None) -> str | None:
    if found is None or isinstance(found, str):
        return found
    by_name = {named.name: named.template for named in found}
    return by_name.get("default") or next(iter(by_name.values()), None)


def _hide(conversation: Conversation, tokenizer: Tokenizer) -> _Hidden:
    variables = conversation.variables()
    texts = list(_texts(variables))
    found = dict.fromkeys(spelling for text in texts for spelling in tokenizer.find_special(text))
    if not found:
        return _Hidden(variables, {})
    used = set().union(*map(set, texts))
    free = (chr(code) for code in _PRIVATE_USE if chr(code) not in used)
    standing = {spelling: char for spelling, char in zip(found, free, strict=False)}
    if len(standing) < len(found):
        raise BadRequestError("The messages spell too many control tokens", param="messages")
    # The longest first: a spelling may be part of another one.
    order = sorted(standing, key=len, reverse=True)
    return _Hidden(_replaced(variables, standing, order), {char: spelling for spelling, char in standing.items()})


def _texts(value: Any) -> list[str]:
    """Every string in a tree of dicts and lists, keys included."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for key, item in value.items() for text in (*_texts(key), *_texts(item))]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return []


def _replaced(value: Any, standing: dict[str, str], order: list[str]) -> Any:
    if isinstance(value, str):
        for spelling in order:
            value = value.replace(spelling, standing[spelling])
        return value
    if isinstance(value, dict):
        return {_replaced(k, standing, order): _replaced(v, standing, order) for k, v in value.items()}
    if isinstance(value, list):
        return [_replaced(item, standing, order) for item in value]
    return value


def _mark_end(message: dict[str, Any]) -> None:
    if not isinstance(message.get("content"), str):
        raise BadRequestError("continue_final_message needs a final message with text", param="messages")
    message["content"] += _CONTINUE_TAG


def _cut_at_mark(text: str) -> str:
    at = text.rfind(_CONTINUE_TAG.strip())
    if at < 0:
        raise BadRequestError(
            "continue_final_message: the chat template leaves the final message out", param="continue_final_message"
        )
    whole = text.startswith(_CONTINUE_TAG, at)
    return text[:at] if whole else text[:at].rstrip()  # the template trims the message, so its end goes too
