"""What a gpt-oss model needs, together: how its prompts are made, how its answers are read, and what ends them.

Made by app/service.py where the checkpoint has the vocabulary; used by app/chat.py and app/chat_reading.py.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import final

from openai_harmony import HarmonyEncoding, HarmonyEncodingName, HarmonyError, load_harmony_encoding

from app.choice_reader import TextParser, Wanted
from app.harmony.marks import marks_of
from app.harmony.message_parts import ANALYSIS, MessageParts
from app.harmony.reader import HarmonyReader
from app.harmony.recipients import Recipients
from app.harmony.template import HarmonyTemplate
from app.harmony.token_places import TokenPlaces
from app.harmony.vocabulary import vocabulary_directory
from app.tokenizer import Tokenizer
from app.tool_namespace import ToolNamespace
from protocol.errors import CheckpointError
from protocol.sampling import Thoughts

_BASE = "TIKTOKEN_ENCODINGS_BASE"
"""Where the library looks for vocabularies before it asks the network."""


@final
class Harmony:
    """Immutable; the same for every request."""

    def __init__(self, encoding: HarmonyEncoding, tokenizer: Tokenizer) -> None:
        """Raises CheckpointError if the control tokens of both are not the same."""
        self._encoding = encoding
        self._tokenizer = tokenizer
        self._marks = marks_of(encoding, tokenizer)
        self.template = HarmonyTemplate(encoding)
        self.stop_token_ids = tuple(encoding.stop_tokens_for_assistant_actions())
        """Each ends an answer: it is final, or a call is to be made."""

    def reader(
        self,
        prompt: Sequence[int],
        names: Collection[str],
        namespaces: Sequence[ToolNamespace],
        wanted: Wanted,
        *,
        spells_control_tokens: bool = False,
        answer: TextParser | None = None,
    ) -> HarmonyReader:
        """Of one choice. `names`: what may be called. `answer` reads what is on the final channel, if that is more than
        text."""
        begun = self._begun(prompt)
        places = TokenPlaces(
            self._encoding, self._marks, self._tokenizer, begun, spells_control_tokens=spells_control_tokens
        )
        return HarmonyReader(places, MessageParts(Recipients(names, namespaces), answer), wanted)

    def thoughts(self, prompt: Sequence[int]) -> Thoughts | None:
        """What comes before an answer that a grammar makes: thoughts, if the model likes, and the header of the answer.
        None if the prompt has begun the answer."""
        marks = self._marks
        begun = list(self._begun(prompt))
        if self._tokenizer.decode(begun[1:]) != "assistant":
            return None
        return Thoughts(
            opening=(marks.channel, ANALYSIS, marks.message),
            closing=(marks.end, marks.start, "assistant"),
            answer=(marks.channel, "final", marks.message),
        )

    def _begun(self, prompt: Sequence[int]) -> Sequence[int]:
        """What the answer continues: from the last <|start|> on."""
        at = next((at for at in range(len(prompt) - 1, -1, -1) if prompt[at] == self._marks.start), len(prompt))
        return prompt[at:]


def open_harmony(tokenizer: Tokenizer, cache_directory: Path) -> Harmony:
    """Takes a second. Raises CheckpointError if the checkpoint has another vocabulary, or nothing can be kept."""
    directory = vocabulary_directory(tokenizer, cache_directory)
    before = os.environ.get(_BASE)
    os.environ[_BASE] = str(directory.absolute())
    try:
        encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    except HarmonyError as error:
        raise CheckpointError(f"openai-harmony cannot read {directory}: {error}") from error
    finally:
        if before is None:
            del os.environ[_BASE]
        else:
            os.environ[_BASE] = before
    return Harmony(encoding, tokenizer)
