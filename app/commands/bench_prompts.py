"""What `trillm bench` asks: prompts that are made up, or read from a file, and how many tokens of an answer.

Pure but for the file. There is no tokeniser here. Made-up prompts for completions are token ids out of what the
server's own /tokenize makes of some words, so that they have exactly the length that was asked for; in chats they are
as many words as make about so many tokens, and where there is no /tokenize, one word for each token. How many tokens a
prompt had is told by the server's `usage` anyway.
"""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from attrs import frozen

from app.commands.bench_plan import PromptFlags
from protocol.errors import BadRequestError

TEXT = (
    "time year people way day man thing woman life child world school state family student group country "
    "problem hand part place case week company system program question work number night point home water room "
    "mother area money story fact month lot right study book eye job word business issue side kind head house "
    "service friend father power hour game line end member law car city community name team minute idea kid "
    "body information back parent face others level office door health person art war history party result "
    "change morning reason research girl moment air teacher force education foot boy age policy music market "
    "sense nation plan college interest death experience effect use class control care field development role "
    "effort rate heart drug show leader light voice wife police mind price report decision son view "
    "relationship town road arm difference value building action season society tax director"
)
"""Common words: most are one token each, whatever the tokeniser."""
WORDS = TEXT.split()
CHARACTERS_PER_TOKEN = 4
"""Of English text, about: to choose among conversations whose lengths in tokens nobody has counted."""
LEAST_TOKENS, MOST_PROMPT_TOKENS, MOST_TOGETHER = 4, 1024, 2048
"""Of ShareGPT's conversations those are taken whose tokens are between; vLLM's bounds."""


@frozen
class Prompt:
    content: str | list[int]
    """Token ids where the server's own are known."""
    num_output_tokens: int


@frozen
class Vocabulary:
    """What a server's tokeniser makes of TEXT."""

    ids: list[int]
    """Each once. Empty: prompts are words."""
    tokens_per_word: float = 1.0


NO_VOCABULARY = Vocabulary([])


class _Said(msgspec.Struct):
    value: str = ""


class _ShareGpt(msgspec.Struct):
    conversations: list[_Said] = []


class _Custom(msgspec.Struct):
    prompt: str
    output_tokens: int | None = None


def make_prompts(flags: PromptFlags, num_prompts: int, vocabulary: Vocabulary) -> list[Prompt]:
    """As many as asked for. Raises BadRequestError for a file that cannot be used."""
    rng = Random(flags.seed)
    if flags.dataset_name == "random":
        return random_prompts(flags, num_prompts, vocabulary, rng)
    assert flags.dataset_path is not None, "it was checked"
    data = _read(flags.dataset_path)
    read = sharegpt_prompts if flags.dataset_name == "sharegpt" else custom_prompts
    found = read(flags, data)
    if not found:
        raise BadRequestError(f"--dataset-path {flags.dataset_path} has no prompt of a fitting length")
    if not flags.disable_shuffle:
        rng.shuffle(found)
    return [found[number % len(found)] for number in range(num_prompts)]


def random_prompts(flags: PromptFlags, num_prompts: int, vocabulary: Vocabulary, rng: Random) -> list[Prompt]:
    """In ids, or in words where there are none."""
    of_input, of_output = flags.range_ratios
    prefix = _random_content(flags.random_prefix_len, vocabulary, rng)
    prompts = []
    for _ in range(num_prompts):
        rest = _random_content(_varied(flags.random_input_len, of_input, rng), vocabulary, rng)
        content = prefix + rest if vocabulary.ids else " ".join([*prefix, *rest])
        prompts.append(Prompt(content, _varied(flags.random_output_len, of_output, rng)))
    return prompts


def sharegpt_prompts(flags: PromptFlags, data: bytes) -> list[Prompt]:
    """The first question of each conversation. Raises BadRequestError."""
    try:
        conversations = msgspec.json.decode(data, type=list[_ShareGpt])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequestError(f"--dataset-path {flags.dataset_path} is no ShareGPT JSON: {error}") from error
    prompts = []
    for conversation in conversations:
        if len(conversation.conversations) < 2:
            continue
        question, answer = (said.value for said in conversation.conversations[:2])
        num_prompt = len(question) // CHARACTERS_PER_TOKEN
        num_output = flags.sharegpt_output_len or len(answer) // CHARACTERS_PER_TOKEN
        is_long_enough = num_prompt >= LEAST_TOKENS and num_output >= (1 if flags.sharegpt_output_len else LEAST_TOKENS)
        if is_long_enough and num_prompt <= MOST_PROMPT_TOKENS and num_prompt + num_output <= MOST_TOGETHER:
            prompts.append(Prompt(question, num_output))
    return prompts


def custom_prompts(flags: PromptFlags, data: bytes) -> list[Prompt]:
    """One of each line. Raises BadRequestError that names the line."""
    prompts = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            said = msgspec.json.decode(line, type=_Custom)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRequestError(f"--dataset-path {flags.dataset_path}, line {number}: {error}") from error
        num_output = said.output_tokens if flags.custom_output_len == -1 else flags.custom_output_len
        if num_output is None or num_output < 1:
            raise BadRequestError(
                f"--dataset-path {flags.dataset_path}, line {number}: has no output_tokens of 1 or more"
            )
        prompts.append(Prompt(said.prompt, num_output))
    return prompts


def arrivals(num_prompts: int, request_rate: float, burstiness: float, seed: int) -> list[float]:
    """When each is sent, in seconds from the start."""
    if math.isinf(request_rate):
        return [0.0] * num_prompts
    rng = Random(f"arrivals of {seed}")
    times, now = [], 0.0
    for _ in range(num_prompts):
        times.append(now)
        now += rng.gammavariate(burstiness, 1.0 / (request_rate * burstiness))
    return times


def _random_content(num_tokens: int, vocabulary: Vocabulary, rng: Random) -> list[Any]:
    """Ids or words."""
    if vocabulary.ids:
        return rng.choices(vocabulary.ids, k=num_tokens)
    return rng.choices(WORDS, k=round(num_tokens / vocabulary.tokens_per_word))


def _varied(length: int, ratio: float, rng: Random) -> int:
    return rng.randint(max(1, round(length * (1 - ratio))), max(1, round(length * (1 + ratio))))


def _read(path: Path) -> bytes:
    try:
        return path.expanduser().read_bytes()
    except OSError as error:
        raise BadRequestError(f"--dataset-path {path} cannot be read: {error.strerror or error}") from error
