"""Every message that travels between processes, as tagged frozen structs in one union per receiver.

Rules: one fact, one struct; fields are positional on the wire, so new ones are appended with a default; a receiver's
union is closed, and an undecodable frame is counted and dropped by the link. `VERSION` is bumped when a change is not
an append. Every frame between a client and an engine carries the engine's epoch, and everything that an engine says
carries a sequence number, so that nothing stale, lost or doubled goes unnoticed.
"""

from __future__ import annotations

import enum

import msgspec

from protocol.engine_stats import EngineStats
from protocol.ids import ClientIndex, EngineIndex, Epoch, RequestId
from protocol.kv import KvParams
from protocol.lora import LoraRequest
from protocol.operations import UtilityOperation, UtilityResult
from protocol.pooling import PoolingParams
from protocol.sampling import SamplingParams
from protocol.timeline import Timeline

VERSION = 1


class EngineCoreRequestType(enum.StrEnum):
    """The tags of what a client asks of an engine."""

    ADD_REQUEST = "ADD_REQUEST"
    ABORT_REQUEST = "ABORT_REQUEST"
    UTILITY = "UTILITY"
    RESYNC = "RESYNC"


class FinishReason(enum.StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REPETITION = "repetition"
    """It said the same over and over, and its request asked to end it then."""


# ------------------------------------------------------------------ app or output handler -> engine


class EngineCoreRequest(
    msgspec.Struct, frozen=True, array_like=True, gc=False, tag=EngineCoreRequestType.ADD_REQUEST.value
):
    """One sequence to generate. Sent to the engine (PUSH/PULL) and, unchanged, to the output handler."""

    epoch: Epoch
    client_index: ClientIndex
    request_id: RequestId
    prompt_token_ids: list[int]
    """At least one; all inside the vocabulary; shorter than the engine's max_model_len."""
    sampling_params: SamplingParams
    arrival_time: float
    """Seconds of CLOCK_MONOTONIC (one host)."""
    priority: int = 0
    """Lower runs first under the priority policy."""
    continuation_token_ids: list[int] = []
    """Output tokens that an earlier incarnation already produced: the request goes on after them."""
    cache_salt: str = ""
    """Only requests with the same salt share cached prefixes, so that no timing tells one what another one said."""
    deadline: float | None = None
    """Seconds of CLOCK_MONOTONIC from when on nobody waits for it: the engine then ends it with an error."""
    lora: LoraRequest | None = None
    """The adapter to compute it with."""
    pooling: PoolingParams | None = None
    """The prompt becomes one vector, and no token is sampled. Then max_tokens is 0, there is no continuation, and the
    prompt may be as long as max_model_len."""
    kv: KvParams | None = None
    """None: its KV neither comes from elsewhere nor goes anywhere."""
    is_traced: bool = False
    """The output handler is to tell how long its text took (Timeline.detokenising)."""


class AbortRequest(
    msgspec.Struct, frozen=True, array_like=True, gc=False, tag=EngineCoreRequestType.ABORT_REQUEST.value
):
    """Drop these requests. Idempotent, never answered; ids that are unknown or finished are ignored."""

    epoch: Epoch
    client_index: ClientIndex
    request_ids: list[RequestId]


class UtilityRequest(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=EngineCoreRequestType.UTILITY.value):
    """An administrative operation; answered by one UtilityReply with the same call_id."""

    epoch: Epoch
    client_index: ClientIndex
    call_id: int
    operation: UtilityOperation


class ResyncRequest(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=EngineCoreRequestType.RESYNC.value):
    """The output handler saw a gap: send, per request, every output token from this offset on, once more.

    An id that the engine does not know any more is answered with finish reason "error".
    """

    epoch: Epoch
    client_index: ClientIndex
    offsets: dict[RequestId, int]


EngineInput = EngineCoreRequest | AbortRequest | UtilityRequest | ResyncRequest


# ------------------------------------------------------------------ engine -> output handler (one XPUB per client)


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probabilities at one position: the token that stands there first, then the best ones in falling order."""

    token_ids: list[int]
    logprobs: list[float]
    """Natural logarithm of the model's own distribution (raw logits, before temperature, penalties and masks).
    Same length as token_ids; may be -inf."""
    rank: int
    """Of the token that stands there; the most probable has rank 1."""


class EngineCoreOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """New tokens of one request. `offset` counts the output tokens before them, so that repeats are harmless."""

    request_id: RequestId
    offset: int
    new_token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    """One per new token, if asked for."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """One per prompt token (the first is None), all at once, with the first output of a request that asked."""
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    """The stop_token_id that ended it."""
    error: str | None = None
    """With finish reason "error": why, in one sentence for the client."""
    num_cached_tokens: int = 0
    """Prompt tokens that were not computed because their KV blocks were at hand."""
    embedding: bytes | None = None
    """[dimensions] little-endian float32, with finish reason "stop": what was asked for with `pooling`."""
    scheduled_at: float | None = None
    """Seconds of CLOCK_MONOTONIC at which it first had a place in a step; with the first and the last output."""
    num_preemptions: int = 0
    """Times that it lost its blocks to others so far."""
    kv_ticket: bytes | None = None
    """For whoever goes on with its KV: with the last output of a request that exports, or with the only one of a
    request that is handed over, which says no more then. Empty if there is none to be had."""


class Welcome(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="WELCOME"):
    """The engine has seen the client's subscription: from here on nothing it publishes is lost at the start."""

    epoch: Epoch
    client_index: ClientIndex
    next_seq: int


class EngineCoreOutputs(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="OUTPUTS"):
    """What one step (or an abort, an admission, a resync) gave for one client; one frame per client and step."""

    epoch: Epoch
    client_index: ClientIndex
    seq: int
    outputs: list[EngineCoreOutput]
    stats: EngineStats
    at: float = 0.0
    """Seconds of CLOCK_MONOTONIC."""


class EngineHeartbeat(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="HEARTBEAT"):
    """Sent about once a second. `next_seq` lets the client see that the last frame was lost."""

    epoch: Epoch
    client_index: ClientIndex
    next_seq: int
    stats: EngineStats


class UtilityReply(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="UTILITY_REPLY"):
    """Exactly one of result and error is set."""

    epoch: Epoch
    client_index: ClientIndex
    seq: int
    call_id: int
    result: UtilityResult | None = None
    error: str | None = None
    is_conflict: bool = False
    """The error is that the engine is in no state for this operation (a profile that nobody started, say)."""


EngineOutput = Welcome | EngineCoreOutputs | EngineHeartbeat | UtilityReply


# ------------------------------------------------------------------ app -> output handler


class AttachEngine(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="ATTACH_ENGINE"):
    """An engine's new incarnation is up: forget the old one, subscribe to this one."""

    engine_index: EngineIndex
    epoch: Epoch
    requests_address: str
    outputs_address: str


OutputInput = EngineCoreRequest | AbortRequest | AttachEngine


# ------------------------------------------------------------------ output handler -> app


class Logprob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One candidate token at one position."""

    token_id: int
    token: str
    token_bytes: bytes
    """The token's own bytes, also where they are no whole character."""
    logprob: float
    rank: int


class PositionLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What stands at a position, and the best candidates in falling order (without it unless it is among them)."""

    chosen: Logprob
    top: list[Logprob]


class RequestOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is new of one request: always a delta. The last one has a finish reason; there is exactly one such."""

    request_id: RequestId
    offset: int
    """Output tokens before this delta."""
    token_ids: list[int]
    text: str
    """May be empty while a character is incomplete or a stop string may be beginning."""
    logprobs: list[PositionLogprobs] | None = None
    """One per token of the delta."""
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    num_cached_tokens: int = 0
    embedding: bytes | None = None
    """As the engine told it."""
    timeline: Timeline | None = None
    """With the first and the last delta, of a request that had a place in a step."""
    kv_ticket: bytes | None = None
    """As the engine told it."""


class RequestOutputs(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="REQUEST_OUTPUTS"):
    """One frame of the output handler: all that one engine frame gave."""

    engine_index: EngineIndex
    epoch: Epoch
    outputs: list[RequestOutput]
    stats: EngineStats


class EngineAttached(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="ENGINE_ATTACHED"):
    """Welcome has arrived from this incarnation: requests may be sent to it."""

    engine_index: EngineIndex
    epoch: Epoch


class UtilityAnswer(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="UTILITY_ANSWER"):
    """A UtilityReply on its way to the caller in the app."""

    engine_index: EngineIndex
    reply: UtilityReply


AppInput = RequestOutputs | EngineAttached | UtilityAnswer
