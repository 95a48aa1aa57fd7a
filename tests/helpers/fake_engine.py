"""An engine client without engines: it answers each prompt with the same known text, one token at a time. It passes
tests/helpers/engine_conformance.py, as the real one does.

A test can hold it (`hold`, `let`), kill it, make it refuse or fail, and read what it was asked and what it aborted.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio
from attrs import define, field

from actors.handles import ActorState
from app.deadline import Deadline, within
from app.engine import EngineReading, LorasInUse, Prompt, Readiness
from app.incidents import Incidents
from app.tokenizer import Tokenizer
from protocol.engine_stats import EngineStats
from protocol.errors import EngineDeadError, TrillmError, UnavailableError
from protocol.ids import EngineIndex, RequestId
from protocol.messages import FinishReason, Logprob, PositionLogprobs, RequestOutput
from protocol.operations import AbortAll, AllAborted, EngineState, GetState, RunState, UtilityOperation, UtilityResult
from protocol.sampling import Grammar, GrammarSource, SamplingParams
from protocol.spec import EngineFacts
from tests.helpers.grammars import checker

TEXT = " Over the water hung a thin mist, and from the houses one could hear the clatter of breakfast plates."


def _byte_of() -> dict[str, int]:
    """How a byte-level vocabulary spells bytes: printable Latin-1 as itself, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_of()


@define(eq=False)
class FakeEngine:
    tokenizer: Tokenizer
    reply: Callable[[Prompt, int], str] = lambda prompt, index: TEXT
    """The whole text for a prompt and its index; max_tokens and stop strings cut it."""
    max_model_len: int = 256
    hidden_size: int = 8
    tokens_per_delta: int = 1
    facts: EngineFacts | None = None
    readiness: Readiness = field(factory=lambda: Readiness(True))
    alive: bool = True
    stats: EngineStats = field(factory=EngineStats)
    num_requests: int = 0
    refusal: TrillmError | None = None
    """What entering `generate` raises."""
    kv_ticket: bytes = b""
    """What requests whose KV is to be kept are told with their end."""
    room: trio.Event | None = None
    """Until it is set the queue is full."""
    fails_after: dict[int, int] = field(factory=dict)
    """Prompt index to the number of tokens after which that sequence ends with an error."""
    failure: FinishReason = FinishReason.ERROR
    """How it ends then; ABORT is what a draining server does."""
    dies_after: int | None = None
    """Deltas after which every generation raises EngineDeadError."""
    prompts: list[Prompt] = field(factory=list)
    num_aborted: int = 0
    num_left: int = 0
    """Generations that were left."""
    incidents: Incidents = field(factory=Incidents)
    loras_in_use: LorasInUse = field(factory=LorasInUse)
    states: list[ActorState] = field(factory=list)
    run_state: RunState = field(factory=RunState)
    operations: list[UtilityOperation] = field(factory=list)
    """What it was told to do."""
    results: dict[type[UtilityOperation], UtilityResult | TrillmError] = field(factory=dict)
    """What it answers other than its `run_state`."""
    _gate: trio.Semaphore | None = None

    def __attrs_post_init__(self) -> None:
        self.facts = EngineFacts(
            self.max_model_len, 64, 16, self.tokenizer.vocab_size, "cpu", "float32", 0, 0, self.hidden_size
        )

    def hold(self) -> None:
        """From now on no delta comes without `let`."""
        self._gate = trio.Semaphore(0)

    def let(self, deltas: int = 1) -> None:
        assert self._gate is not None
        for _ in range(deltas):
            self._gate.release()

    async def check_grammar(self, source: GrammarSource) -> Grammar:
        return checker().check(source)

    async def operate(self, operation: UtilityOperation) -> list[UtilityResult]:
        self.operations.append(operation)
        result = self.results.get(type(operation), self.run_state)
        if isinstance(result, TrillmError):
            raise result
        if isinstance(operation, GetState):
            return [EngineState(self.stats, [], "idle", self.run_state)]
        if isinstance(operation, AbortAll) and isinstance(result, RunState):
            return [AllAborted(0, result)]
        return [result]

    def readings(self) -> list[EngineReading]:
        return [EngineReading(EngineIndex(0), self.stats, self.run_state, self.facts)]

    def actors(self) -> list[ActorState]:
        return self.states

    def generate(
        self, prompts: Sequence[Prompt], deadline: Deadline | None = None, *, goes_on: bool = False, waits: bool = False
    ) -> AbstractAsyncContextManager[FakeGeneration]:
        return self._generate(prompts, deadline, goes_on, waits)

    @asynccontextmanager
    async def _generate(
        self, prompts: Sequence[Prompt], deadline: Deadline | None, goes_on: bool, waits: bool
    ) -> AsyncIterator[FakeGeneration]:
        if self.refusal is not None and not goes_on and not waits:
            raise self.refusal
        if self.room is not None and not self.room.is_set() and not goes_on:
            if not waits:
                raise UnavailableError("Too many requests", code="queue_full")
            await self.room.wait()
        self.prompts += prompts
        self.num_requests += len(prompts)
        generation = FakeGeneration(self, prompts, deadline)
        try:
            yield generation
        finally:
            self.num_requests -= generation.num_unfinished
            self.num_left += 1
            self.num_aborted += generation.num_unfinished

    async def pass_gate(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._gate is not None:
            await self._gate.acquire()


def embedding_of(prompt: Prompt, hidden_size: int) -> bytes | None:
    """Numbers that say which prompt it was: its length, then its first ids."""
    if prompt.pooling is None:
        return None
    numbers = [len(prompt.prompt_token_ids), *prompt.prompt_token_ids, *[0] * hidden_size][:hidden_size]
    return struct.pack(f"<{hidden_size}f", *numbers)[: 4 * (prompt.pooling.dimensions or hidden_size)]


class FakeGeneration:
    def __init__(self, engine: FakeEngine, prompts: Sequence[Prompt], deadline: Deadline | None) -> None:
        self._engine = engine
        self._deadline = deadline
        self._sequences = [_Sequence(engine, prompt, index) for index, prompt in enumerate(prompts)]
        self._num_deltas = 0

    @property
    def num_unfinished(self) -> int:
        return sum(not sequence.finished for sequence in self._sequences)

    @property
    def finished(self) -> bool:
        return self.num_unfinished == 0

    def engine(self, index: int) -> EngineIndex:
        return EngineIndex(0)

    async def receive(self) -> list[tuple[int, RequestOutput]]:
        assert not self.finished
        with within(self._deadline):
            await self._engine.pass_gate()
        if self._num_deltas == self._engine.dies_after:
            raise EngineDeadError("The engine died")
        self._num_deltas += 1
        before = self.num_unfinished
        outputs = [(index, sequence.step()) for index, sequence in enumerate(self._sequences) if not sequence.finished]
        self._engine.num_requests -= before - self.num_unfinished
        return outputs


class _Sequence:
    def __init__(self, engine: FakeEngine, prompt: Prompt, index: int) -> None:
        self._engine = engine
        self._prompt = prompt
        self._params: SamplingParams = prompt.sampling_params
        self._fails_after = engine.fails_after.get(index)
        text, self._stop = _stopped(engine.reply(prompt, index), self._params.stop)
        self._ids = engine.tokenizer.encode(text, add_special_tokens=False)
        self._reason = FinishReason.STOP
        if len(self._ids) > self._params.max_tokens or not self._ids:
            self._ids = self._ids[: self._params.max_tokens]
            self._reason, self._stop = FinishReason.LENGTH, None
        self._done = 0
        self._told = ""
        self.finished = False
        self._keeps = prompt.kv is not None and prompt.kv.exports

    def step(self) -> RequestOutput:
        new = self._ids[self._done : self._done + self._engine.tokens_per_delta]
        offset = self._done
        self._done += len(new)
        error = None
        reason = self._reason if self._done == len(self._ids) else None
        if self._fails_after is not None and self._done >= self._fails_after:
            reason, error = self._engine.failure, "The grammar went wrong"
        if self._prompt.pooling is not None and error is None:
            reason = FinishReason.STOP
        self.finished = reason is not None
        return RequestOutput(
            RequestId("r"),
            offset,
            new,
            self._text(reason),
            logprobs=None if self._params.logprobs is None else [self._logprobs(token_id) for token_id in new],
            prompt_logprobs=self._prompt_logprobs() if offset == 0 else None,
            finish_reason=reason,
            stop_reason=self._stop if reason is FinishReason.STOP else None,
            error=error,
            num_cached_tokens=min(2, len(self._prompt.prompt_token_ids) - 1),
            embedding=embedding_of(self._prompt, self._engine.hidden_size) if error is None else None,
            kv_ticket=self._engine.kv_ticket if self.finished and self._keeps else None,
        )

    def _text(self, reason: FinishReason | None) -> str:
        """What has become readable: an incomplete character waits, as the real output handler lets it."""
        tokenizer = self._engine.tokenizer
        hidden = set(tokenizer.special_tokens.values()) if self._params.skip_special_tokens else set()
        whole = tokenizer.decode([token_id for token_id in self._ids[: self._done] if token_id not in hidden])
        if reason is None:
            whole = whole.rstrip("�")
        new = whole[len(self._told) :]
        self._told = whole
        return new

    def _logprobs(self, token_id: int, count: int | None = None) -> PositionLogprobs:
        count = self._params.logprobs if count is None else count
        others = [other for other in range(3, 30) if other != token_id]
        ids = [token_id, *others][: count or 0]
        top = [self._logprob(other, rank) for rank, other in enumerate(ids, 1)]
        return PositionLogprobs(self._logprob(token_id, 1), top)

    def _logprob(self, token_id: int, rank: int) -> Logprob:
        spelled = self._engine.tokenizer.token(token_id)
        own = bytes(_BYTE_OF[char] for char in spelled)
        return Logprob(token_id, own.decode(errors="replace"), own, -0.5 * rank if rank < 3 else float("-inf"), rank)

    def _prompt_logprobs(self) -> list[PositionLogprobs | None] | None:
        count = self._params.prompt_logprobs
        if count is None:
            return None
        return [None, *(self._logprobs(token_id, count) for token_id in self._prompt.prompt_token_ids[1:])]


def _stopped(text: str, stop: list[str]) -> tuple[str, str | None]:
    found = sorted((at, string) for string in stop if (at := text.find(string)) >= 0)
    return (text[: found[0][0]], found[0][1]) if found else (text, None)
