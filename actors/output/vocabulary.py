"""What each token id stands for. Loaded once by the output actor; read by the detokenizer and for log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from actors.output.decoding_rule import DecodingRule, decoding_rule
from protocol.errors import CheckpointError


class Vocabulary:
    """The bytes and the string of every token id.

    Ids from `size` on (padding rows of an embedding), and holes below it, stand for nothing: empty bytes, empty text.
    A negative id stands for an engine that has gone wrong: ValueError.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        decoder = tokenizer.decoder
        self.rule: DecodingRule | None = decoding_rule(None if decoder is None else decoder.__getstate__())
        """None: the decoder does not work token by token on bytes, see actors/output/windowed_detokenizer."""
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        """Hidden by skip_special_tokens."""
        self._added = {token_id: token.content for token_id, token in added.items()}
        ids = tokenizer.get_vocab(with_added_tokens=True)
        self._strings = [""] * (max(ids.values(), default=-1) + 1)
        for token, token_id in ids.items():
            self._strings[token_id] = token
        self.table: list[bytes] = [self._bytes_of(token_id) for token_id in range(len(self._strings))]
        """Token id -> its bytes, inside a text (the beginning of a text may have a rule of its own)."""

    @property
    def size(self) -> int:
        """One more than the highest id that the tokenizer knows."""
        return len(self.table)

    def token_bytes(self, token_id: int) -> bytes:
        """The token's own bytes, also where they are no whole character, with its leading space."""
        if token_id < 0:
            raise ValueError(f"token id {token_id} is negative")
        return self.table[token_id] if token_id < len(self.table) else b""

    def token_text(self, token_id: int) -> str:
        r"""The token as text. Bytes that are no whole characters are spelled out: `bytes:\xe2\x82`."""
        data = self.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + data.decode("utf-8", "backslashreplace")

    def first_token_bytes(self, token_id: int) -> bytes:
        """As token_bytes, where the token is the first one of a whole text."""
        data = self.token_bytes(token_id)
        if self.rule is not None and self.rule.first_token_drops and data:
            return self._strings[token_id].replace(self.rule.first_token_drops, "").encode()
        return data

    def is_special(self, token_id: int) -> bool:
        """Whether skip_special_tokens hides it."""
        return token_id in self.special_ids

    def added_content(self, token_id: int) -> str | None:
        """The string of a token that was added beside the model's own vocabulary; None for any other."""
        return self._added.get(token_id)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The library's own decoding of these ids, as a text of its own, special tokens included."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False))

    def _bytes_of(self, token_id: int) -> bytes:
        token = self._strings[token_id]
        if not token:
            return b""
        if self.rule is None:
            return token.encode() if token_id in self._added else self.decode([token_id]).encode()
        return self.rule.token_bytes(token, added=token_id in self._added)


def load_vocabulary(checkpoint_dir: Path | str) -> Vocabulary:
    """Read tokenizer.json of a checkpoint directory. Raises CheckpointError, naming the file, if it cannot be used."""
    path = Path(checkpoint_dir) / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; a checkpoint directory must have a tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{path}: not a tokenizer: {error}") from error
    vocabulary = Vocabulary(tokenizer)
    if vocabulary.size == 0:
        raise CheckpointError(f"{path}: the tokenizer has an empty vocabulary")
    return vocabulary
