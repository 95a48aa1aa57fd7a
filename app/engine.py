"""What the HTTP side needs of the engines behind it, as Protocols.

The routes, the streams and the metrics are written against these; app/engine_client.py implements them over the actors,
and the tests' fake engine implements them in a few lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from attrs import field, frozen

from actors.handles import ActorState
from app.deadline import Deadline
from app.incidents import Incidents
from protocol.engine_stats import EngineStats
from protocol.ids import EngineIndex
from protocol.kv import KvParams
from protocol.lora import LoraRequest
from protocol.messages import RequestOutput
from protocol.operations import RunState, UtilityOperation, UtilityResult
from protocol.pooling import PoolingParams
from protocol.sampling import Grammar, GrammarSource, SamplingParams
from protocol.spec import EngineFacts


@frozen
class Prompt:
    """One sequence to generate: everything in it has been checked against the engine's facts."""

    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    priority: int = 0
    cache_salt: str = ""
    lora: LoraRequest | None = None
    pooling: PoolingParams | None = None
    """Asks for the prompt's vector instead of what comes after it."""
    kv: KvParams | None = None
    """Where its KV comes from and goes to, as its client says; None: neither."""


@frozen
class Readiness:
    """Whether requests are taken now; if not, `reason` says which actor is late or what is loading."""

    ready: bool
    reason: str = ""
    late: str = ""
    """Which engines do not serve, and what they do instead. Requests may be taken all the same: one is enough."""


@frozen
class EngineReading:
    """What there is to tell of one engine."""

    index: EngineIndex
    stats: EngineStats
    run_state: RunState = field(factory=RunState)
    facts: EngineFacts | None = None
    """None until it was ready once."""
    num_predicted: int = 0
    """Prompt tokens that were sent there because, or though, they should be in its cache."""


@frozen
class LorasInUse:
    """Names of the adapters of live requests, in alphabetical order."""

    running: tuple[str, ...] = ()
    """Of those that have a token."""
    waiting: tuple[str, ...] = ()


class Generation(Protocol):
    """The outputs of one call of `generate`, one sequence per prompt."""

    @property
    def finished(self) -> bool:
        """True once every prompt's output with a finish reason has been received."""
        ...

    def engine(self, index: int) -> EngineIndex:
        """Which engine the output of this prompt came from that was received last; the first one before there is
        any."""
        ...

    async def receive(self) -> list[tuple[int, RequestOutput]]:
        """Everything new as (prompt index, delta), at most one per prompt, in order; waits until there is something.

        Raises EngineDeadError when the answers are lost, DeadlineError when they came too late, and UnavailableError
        when the first token did. Not to be called once `finished` is true.
        """
        ...


class EngineClient(Protocol):
    """The way to the engines. One per API server."""

    @property
    def facts(self) -> EngineFacts | None:
        """What is true of all engines; None until the first one was ready."""
        ...

    @property
    def readiness(self) -> Readiness: ...

    @property
    def alive(self) -> bool:
        """False once the service is beyond recovery."""
        ...

    @property
    def stats(self) -> EngineStats:
        """The latest reading of the engines' schedulers, added up."""
        ...

    def readings(self) -> Sequence[EngineReading]:
        """Of each engine that there has been."""
        ...

    @property
    def num_requests(self) -> int:
        """Live engine requests of this API server."""
        ...

    @property
    def incidents(self) -> Incidents:
        """What went wrong so far."""
        ...

    @property
    def loras_in_use(self) -> LorasInUse: ...

    @property
    def run_state(self) -> RunState:
        """Whether the engines take steps: what they last said of it, and what is true of any of them."""
        ...

    async def operate(self, operation: UtilityOperation) -> list[UtilityResult]:
        """Have it done by every engine that is up; their answers. Those that are down are held or released as the
        others are when they come back. Raises UnavailableError, having done nothing, while none of them serves, and
        when none is left; what the first says that fails, though others may have done it; and DeadlineError."""
        ...

    def actors(self) -> Sequence[ActorState]:
        """Every actor as it is now; none before they are started."""
        ...

    async def check_grammar(self, source: GrammarSource) -> Grammar:
        """The grammar for the engine. Raises GrammarError for one that is wrong or beyond the limits, and
        UnavailableError when too many are waiting to be checked."""
        ...

    def generate(
        self, prompts: Sequence[Prompt], deadline: Deadline | None = None, *, goes_on: bool = False, waits: bool = False
    ) -> AbstractAsyncContextManager[Generation]:
        """Entering registers and sends all prompts, or raises UnavailableError and has started none of them.

        `goes_on`: they are a further part of a request that runs. A full queue takes them all the same, since each
        request that runs has had its place there; they wait for an engine that is down, and a drain waits for them, as
        for what was sent at once. `waits`: nobody waits for the first of them. Entering waits for room in the queue,
        as long as its deadline and --max-queue-time let it; else as what goes on. Whoever has so many of them bounds
        their number.
        Leaving it, in whatever way, aborts what is unfinished, synchronously. So does its deadline, after which
        `receive` raises DeadlineError.
        """
        ...
