"""The vocabulary file that openai-harmony wants, made of the served checkpoint's own tokeniser: no network is asked.

It is the same file for every gpt-oss checkpoint, so its hash tells whether the checkpoint has that vocabulary.
"""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
from pathlib import Path

from app.harmony.byte_level import token_bytes
from app.tokenizer import Tokenizer
from protocol.errors import CheckpointError

FILE = "o200k_base.tiktoken"
NUM_TOKENS = 199_998
"""Those before the control tokens."""
SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
"""Of the file; the library checks the same one."""


def vocabulary_directory(tokenizer: Tokenizer, cache_directory: Path) -> Path:
    """The directory with the file, which is written there if it is not there yet. Several servers may do so at once.

    Raises CheckpointError for another vocabulary, and for a directory that cannot be written.
    """
    data = vocabulary_file(tokenizer)
    path = cache_directory / "harmony" / FILE
    try:
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != SHA256:
            _write(path, data)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error.strerror or error}") from error
    return path.parent


def vocabulary_file(tokenizer: Tokenizer) -> bytes:
    """A line for each token, in the order of their ids: its bytes in base 64, and its id."""
    try:
        tokens = [token_bytes(tokenizer, token_id) for token_id in range(NUM_TOKENS)]
    except KeyError as error:
        raise CheckpointError("its tokens are not those of a byte-level vocabulary") from error
    data = b"".join(b"%s %d\n" % (base64.b64encode(token), token_id) for token_id, token in enumerate(tokens))
    if hashlib.sha256(data).hexdigest() != SHA256:
        raise CheckpointError(f"its first {NUM_TOKENS} tokens are not those of {FILE}")
    return data


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".vocabulary-", delete=False) as sink:
        try:
            sink.write(data)
            sink.flush()
            os.fsync(sink.fileno())
            Path(sink.name).replace(path)
        except BaseException:
            Path(sink.name).unlink(missing_ok=True)
            raise
