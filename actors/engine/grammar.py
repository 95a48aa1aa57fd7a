"""Grammars as masks over the vocabulary, by llguidance. The engine's main compiles in a worker thread and hands the
state to the scheduler, which asks it for each token of its sequence.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any, NamedTuple, final

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from actors.engine.sequence import Foreseen
from protocol.sampling import Grammar

MAX_ERROR_CHARS = 300
MAX_REMEMBERED = 32
"""Grammars that are kept compiled."""
MOST_NARROW_BYTES = 24
"""A mask with more bytes that are not 0 allows too much for a guess at what comes."""
MAX_HABITS = 64
"""Narrow masks for which a sequence remembers what it chose."""


class Habit(NamedTuple):
    """What a sequence chose where little was allowed."""

    token_id: int
    is_reliable: bool
    """It did not choose something else the time before: digits are no habit."""


@final
class GrammarState:
    """Where one sequence stands in its grammar. Fulfils actors.engine.sequence.Constraint; for one thread at a time.

    The mask allows end-of-sequence tokens exactly where the grammar may end. A sequence that ignores them still ends:
    where nothing else is allowed, `is_finished` is true.
    """

    def __init__(self, matcher: LLMatcher, num_mask_bytes: int) -> None:
        self._matcher = matcher
        self._num_mask_bytes = num_mask_bytes
        self._bitmask: bytes | None = None
        self._ahead: deque[Foreseen] = deque()
        """What has been foreseen from here on."""
        self._habits: dict[int, Habit] = {}
        """By the hash of a narrow mask."""

    @property
    def error(self) -> str | None:
        """One line for the client; once set it stays."""
        return _first_line(self._matcher.get_error()) if self._matcher.is_error() else None

    @property
    def is_finished(self) -> bool:
        """Nothing may follow, or end-of-sequence has been accepted."""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def accept(self, token_id: int) -> bool:
        """Move on by one token; False, with `error` set, if it is not allowed here."""
        self._remember(token_id)
        self._bitmask = None
        if self._ahead and self._ahead[0].token_id == token_id:
            self._bitmask = self._ahead.popleft().bitmask
        else:
            self._ahead.clear()
        return bool(self._matcher.consume_token(token_id))

    def bitmask(self) -> bytes:
        """The allowed next tokens, as protocol.step.Row.grammar_bitmask describes. Kept until the next `accept`.

        May be slow, and may set `error` (the grammar is too ambiguous here to be followed within limits).
        """
        if self._bitmask is None:
            self._bitmask = self._compute_bitmask(self._matcher)
        return self._bitmask

    def look_ahead(self, count: int) -> list[Foreseen]:
        """At most `count` tokens from here on, while the mask leaves only one, or few of which this sequence has chosen
        one before: the blanks and quotes of one JSON text are mostly alike. No token that ends it is foreseen.

        Goes on in a copy of the matcher, so that it can set no `error`. What it computed is kept for `accept`.
        """
        matcher: LLMatcher | None = None
        mask = self.bitmask()
        self._ahead.clear()
        followed: set[bytes] = set()  # a habit is worth one guess: where digits may stand, more digits may
        while len(self._ahead) < count and mask not in followed and (token_id := self._likely(mask)) is not None:
            followed.add(mask)
            if matcher is None:
                matcher = self._matcher.deep_copy()
            if not matcher.consume_token(token_id) or matcher.is_stopped():
                break
            mask = self._compute_bitmask(matcher)
            if matcher.is_error():
                break
            self._ahead.append(Foreseen(token_id, mask))
        return list(self._ahead)

    def _compute_bitmask(self, matcher: LLMatcher) -> bytes:
        mask: bytes = matcher.compute_bitmask()  # one word longer than the vocabulary needs
        return mask[: self._num_mask_bytes].ljust(self._num_mask_bytes, b"\0")

    def _likely(self, mask: bytes) -> int | None:
        num_bytes = len(mask) - mask.count(0)
        if num_bytes > MOST_NARROW_BYTES:
            return None
        last = len(mask.rstrip(b"\0")) - 1
        if num_bytes == 1 and mask[last].bit_count() == 1:
            return last * 8 + mask[last].bit_length() - 1
        habit = self._habits.get(hash(mask))
        return habit.token_id if habit is not None and habit.is_reliable else None

    def _remember(self, token_id: int) -> None:
        mask = self._bitmask
        if mask is not None and 1 < len(mask) - mask.count(0) <= MOST_NARROW_BYTES:
            if len(self._habits) == MAX_HABITS:
                self._habits.clear()
            habit = self._habits.get(hash(mask))
            self._habits[hash(mask)] = Habit(token_id, habit is None or habit.token_id == token_id)

    def copy(self) -> GrammarState:
        """A state of its own at the same place."""
        copied = GrammarState(self._matcher.deep_copy(), self._num_mask_bytes)
        copied._bitmask = self._bitmask
        return copied

    def __repr__(self) -> str:
        state = self.error or ("finished" if self.is_finished else "open")
        return f"<GrammarState {state}>"


@final
class GrammarCompiler:
    """Compiles for the tokeniser of one checkpoint directory. `compile` may be called from several threads."""

    def __init__(self, checkpoint: str, vocab_size: int = 0) -> None:
        """`vocab_size` is the model's: masks have a bit for each of its tokens (the tokeniser's if those are more).
        Reads nothing yet."""
        self._checkpoint = Path(checkpoint)
        self._vocab_size = vocab_size
        self._num_mask_bytes = (vocab_size + 31) // 32 * 4
        self._limits = LLParserLimits(verbose_errors=False)
        self._lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[str, GrammarState] = OrderedDict()

    def compile(self, grammar: Grammar) -> GrammarState:
        """The state before the first token, with the mask for that made.

        Takes milliseconds to seconds; the first call reads the tokeniser, which takes about a second more. Raises
        ValueError, in one line for the client, for a grammar that cannot be followed, and for a tokeniser or an
        end-of-sequence token that llguidance does not understand.
        """
        with self._lock:
            fresh = self._compiled.get(grammar.text)
        if fresh is None:
            matcher = LLMatcher(self._open_tokenizer(), grammar.text, log_level=0, limits=self._limits)
            fresh = GrammarState(matcher, self._num_mask_bytes)
            if fresh.error is None:
                fresh.bitmask()
            if fresh.error is not None:
                raise ValueError(fresh.error)
            self._remember(grammar.text, fresh)
        return fresh.copy()

    def _remember(self, text: str, fresh: GrammarState) -> None:
        """The choices of one request, and requests with the same schema, share a compilation."""
        with self._lock:
            self._compiled[text] = fresh
            if len(self._compiled) > MAX_REMEMBERED:
                self._compiled.popitem(last=False)

    def _open_tokenizer(self) -> LLTokenizer:
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = self._read_tokenizer()
            return self._tokenizer

    def _read_tokenizer(self) -> LLTokenizer:
        parts = msgspec.json.decode((self._checkpoint / "tokenizer.json").read_bytes(), type=dict[str, msgspec.Raw])
        parts |= {"padding": msgspec.Raw(b"null"), "truncation": msgspec.Raw(b"null")}
        text = msgspec.json.encode(parts).decode()
        eos = sorted(_eos_token_ids(self._checkpoint)) or None
        tokenizer = LLTokenizer(text, eos_token=eos)
        if tokenizer.vocab_size < self._vocab_size:  # the embedding is often padded; never the other way round here
            tokenizer = LLTokenizer(text, n_vocab=self._vocab_size, eos_token=eos)
        return tokenizer


def _eos_token_ids(checkpoint: Path) -> set[int]:
    """Every token that may end a sequence, by config.json, generation_config.json and tokenizer_config.json."""
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        eos = _read(checkpoint / name).get("eos_token_id")
        found.update([eos] if isinstance(eos, int) else eos or [])
    token = _read(checkpoint / "tokenizer_config.json").get("eos_token")
    content = token.get("content") if isinstance(token, dict) else token
    added = _read(checkpoint / "tokenizer.json").get("added_tokens", [])
    found.update(entry["id"] for entry in added if entry["content"] == content)
    return found


def _read(path: Path) -> dict[str, Any]:
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Any]) if path.exists() else {}


def _first_line(error: str) -> str:
    line = error.strip().split("\n", 1)[0]
    return line if len(line) <= MAX_ERROR_CHARS else line[:MAX_ERROR_CHARS] + " …"
