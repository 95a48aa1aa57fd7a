"""The vectors of an answer as JSON: OpenAI's shape, with numbers or in base64. Used by app/routes/embeddings.py.

Thousands of vectors are tens of megabytes of text, which a worker thread writes.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from typing import cast

import msgspec
import trio

from app.schemas.embeddings import Embedding, EmbeddingList, EmbeddingUsage

_INLINE_BYTES = 65_536
"""Vectors of so many bytes are written on the spot, within some milliseconds."""


def told(index: int, values: bytes, encoding_format: str) -> Embedding:
    """`values` are [dimensions] little-endian float32."""
    if encoding_format == "base64":
        return Embedding(index, base64.b64encode(values).decode())
    return Embedding(index, list(struct.unpack(f"<{len(values) // 4}f", values)))


async def embedding_list(
    head: tuple[str, int, str], vectors: Sequence[bytes], num_tokens: int, encoding_format: str
) -> bytes:
    """The body of the answer; `head` is its id, its time and its model."""
    request_id, created, model = head

    def write() -> bytes:
        # Each by itself: the interpreter's lock is free between them, and one vector's numbers are objects at a time.
        encoded = [
            msgspec.Raw(msgspec.json.encode(told(index, values, encoding_format)))
            for index, values in enumerate(vectors)
        ]
        data = cast("list[Embedding]", encoded)
        usage = EmbeddingUsage(num_tokens, num_tokens)
        return msgspec.json.encode(EmbeddingList(id=request_id, created=created, model=model, data=data, usage=usage))

    if sum(map(len, vectors)) <= _INLINE_BYTES:
        return write()
    return await trio.to_thread.run_sync(write)
