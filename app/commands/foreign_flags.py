"""What to say of a flag that another server has and this one has not. Used by app/commands/complaint.py; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from app.commands.other_flags import LLAMA_CPP_SENTENCES, SGLANG_SENTENCES
from app.commands.vllm_flags import VLLM_SENTENCES

SENTENCES = {
    flag: sentence
    for table in (LLAMA_CPP_SENTENCES, SGLANG_SENTENCES, VLLM_SENTENCES)  # the last one wins
    for flags, sentence in table.items()
    for flag in flags.split()
}


@attrs.frozen
class ForeignFlag:
    """One that was given."""

    flag: str
    """As it was written, without its value."""
    sentence: str


def foreign_flags(words: Iterable[str]) -> Iterator[ForeignFlag]:
    """Those among a command's words, each once and in their order. What follows `--` is no flag."""
    found: set[str] = set()
    for word in words:
        if word == "--":
            return
        flag = word.split("=", 1)[0]
        if flag not in found and (sentence := sentence_of(flag)) is not None:
            found.add(flag)
            yield ForeignFlag(flag, sentence)


def sentence_of(flag: str) -> str | None:
    """None: no server that is known here has it, or this one has it. vLLM takes underscores for hyphens, a `--no-…` of
    each switch, and keys of JSON after a dot."""
    name = flag.replace("_", "-").split(".", 1)[0] if flag.startswith("--") else flag
    return SENTENCES.get(name) or SENTENCES.get(name.replace("--no-", "--", 1))
