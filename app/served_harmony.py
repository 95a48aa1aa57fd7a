"""Whether openai-harmony serves the model, which is decided when its checkpoint is read. Used by app/service.py."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from app.dialects.dialect import Dialect
from app.tokenizer import Tokenizer
from protocol.errors import CheckpointError

if TYPE_CHECKING:
    from app.harmony.harmony import Harmony

logger = logging.getLogger("trillm")


def served_harmony(dialect: Dialect, tokenizer: Tokenizer, cache_directory: Path) -> Harmony | None:
    """None for a model that speaks something else, and for one whose vocabulary is not gpt-oss's, which is logged. The
    library is loaded here and nowhere else; with the vocabulary this takes a second."""
    if not dialect.is_harmony:
        return None
    from app.harmony.harmony import open_harmony

    try:
        harmony = open_harmony(tokenizer, cache_directory)
    except CheckpointError as error:
        logger.warning(
            "openai-harmony cannot serve this checkpoint: %s; its chat template is used, and answers are read by their "
            "text",
            error.message,
        )
        return None
    logger.info("openai-harmony reads the model's answers")
    return harmony


def ending_tokens(eos: Iterable[int], harmony: Harmony | None) -> tuple[int, ...]:
    """`eos`: those that the checkpoint knows. Some do not have the one that ends a call."""
    return tuple(dict.fromkeys((*eos, *(() if harmony is None else harmony.stop_token_ids))))
