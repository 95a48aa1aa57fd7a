"""What is kept of a live request: enough to go on with it after the engine or the output handler has died.

Sampling noise is a function of (seed, position), and a row's arithmetic does not depend on what is computed beside it.
So the same request, handed to a new engine with the tokens that have been told already, gets the same further tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import attrs

from app.deadline import Deadline
from app.engine import LorasInUse, Prompt
from app.mailbox import ActorGeneration
from app.tracing.request_trace import RequestTrace
from protocol.ids import FIRST_CLIENT, ClientIndex, EngineIndex, Epoch, RequestId
from protocol.kv import KvParams
from protocol.messages import EngineCoreRequest, RequestOutput

TRIAL_DEATHS = 2
"""Engines that died under it one after the other, from when on it is tried alone: so it is found out whether it is the
cause."""
MAX_DEATHS = 3
"""From when on it is taken for the cause, and ends."""
MOST_AHEAD = 128
"""Tokens that a sequence counts for what it may still generate: how many it will, nobody knows."""


@attrs.define(eq=False)
class Entry:
    """One live request."""

    request_id: RequestId
    prompt: Prompt
    generation: ActorGeneration
    arrival_time: float
    deadline: Deadline | None = None
    engine_deadline: float | None = None
    """From when on the engine drops it, in seconds of CLOCK_MONOTONIC: absolute, so that no incarnation begins anew."""
    first_token_by: float = math.inf
    """On trio's clock: how long it may be queued, under --max-queue-time, if no other choice of its call has begun."""
    token_ids: list[int] = attrs.field(factory=list)
    """The output tokens that have been put into the mailbox."""
    engine: tuple[EngineIndex, Epoch] | None = None
    """Where it runs; None while it waits for an engine to be up again."""
    home: EngineIndex | None = None
    """While it waits: the engine that has what was computed of it, and is up, but not heard."""
    num_uncomputed: int = 0
    """Tokens that its engine has to compute before the next one comes, as far as was known when it got them."""
    deaths: int = 0
    """Engines that died under it since its last token, but for those that somebody killed."""
    client: ClientIndex = FIRST_CLIENT
    kv_ticket: bytes = b""
    """For what the engine has computed that handed it over."""
    is_moving: bool = False
    """It waits for an engine because one has handed it over."""
    hands_over: bool = False
    """Its engine computes the prompt and the first token, and then hands it over. If it does not do so with that
    token, it goes on itself for a while, as it has no connector."""
    trace: RequestTrace | None = None
    """Of the request that it is for, if somebody reads it."""
    lost: str | None = None
    """While it waits: who is gone that had it, and what was computed of it or read."""

    def request(self, epoch: Epoch, kv: KvParams | None = None) -> EngineCoreRequest:
        """As it is sent to an engine, the first time or to go on."""
        return EngineCoreRequest(
            epoch=epoch,
            client_index=self.client,
            request_id=self.request_id,
            prompt_token_ids=self.prompt.prompt_token_ids,
            sampling_params=self.prompt.sampling_params,
            arrival_time=self.arrival_time,
            priority=self.prompt.priority,
            cache_salt=self.prompt.cache_salt,
            continuation_token_ids=list(self.token_ids),
            deadline=self.engine_deadline,
            lora=self.prompt.lora,
            pooling=self.prompt.pooling,
            kv=kv,
            is_traced=self.trace is not None,
        )

    @property
    def due(self) -> float:
        """When it is late if nothing comes of it, on trio's clock."""
        by = math.inf if self.generation.has_begun else self.first_token_by
        return by if self.deadline is None else min(by, self.deadline.at)

    @property
    def load(self) -> int:
        """What its engine has still to do for it, in tokens."""
        most = 1 if self.hands_over else MOST_AHEAD
        return self.num_uncomputed + min(self.prompt.sampling_params.max_tokens - len(self.token_ids), most)

    def send_to(self, engine: tuple[EngineIndex, Epoch], num_cached: int, *, hands_over: bool = False) -> None:
        """It runs there from now on, where so many of the prompt's tokens are expected in the cache."""
        self.engine, self.home, self.is_moving, self.hands_over = engine, None, False, hands_over
        if self.lost is not None:
            if self.trace is not None:
                self.trace.replayed(self.lost, incarnation_name(*engine), len(self.token_ids))
            self.lost = None
        self.num_uncomputed = len(self.prompt.prompt_token_ids) + len(self.token_ids) - num_cached

    def lose(self, actor: str) -> None:
        """This one is gone, without which it cannot go on: it is to be sent again."""
        self.lost = actor
        if self.trace is not None:
            self.trace.interrupted(actor)

    def deliver(self, output: RequestOutput, engine: EngineIndex) -> None:
        self.generation.put(output, engine)
        if output.token_ids:
            self.token_ids += output.token_ids
            self.deaths = self.num_uncomputed = 0
            self.hands_over = False

    def hand_over(self, ticket: bytes) -> None:
        """Its engine has forgotten it, so that another one goes on."""
        self.engine, self.is_moving, self.kv_ticket = None, True, ticket

    @property
    def is_on_trial(self) -> bool:
        return self.deaths >= TRIAL_DEATHS


def incarnation_name(index: EngineIndex, epoch: Epoch) -> str:
    return f"engine-{index} epoch {epoch}"


def loras_in_use(entries: Iterable[Entry]) -> LorasInUse:
    """By the live requests."""
    running: set[str] = set()
    waiting: set[str] = set()
    for entry in entries:
        if entry.prompt.lora is not None:
            (running if entry.token_ids else waiting).add(entry.prompt.lora.name)
    return LorasInUse(tuple(sorted(running)), tuple(sorted(waiting)))
