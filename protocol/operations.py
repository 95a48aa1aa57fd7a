"""The administrative operations of an engine, and what each is answered with: the closed unions that travel inside
UtilityRequest and UtilityReply (protocol/messages.py).
"""

from __future__ import annotations

import enum

import msgspec

from protocol.engine_stats import EngineStats
from protocol.ids import RequestId
from protocol.lora import LoraId, LoraRequest


class PauseMode(enum.StrEnum):
    """What becomes of the requests that an engine has when it is paused or put to sleep. New ones wait in any case."""

    ABORT = "abort"
    """They end, with finish reason "abort"."""
    WAIT = "wait"
    """Those that have begun are finished first."""
    KEEP = "keep"
    """They stop where they are, and go on afterwards."""


class SleepTag(enum.StrEnum):
    """What can be woken by itself."""

    WEIGHTS = "weights"
    KV_CACHE = "kv_cache"
    SCHEDULING = "scheduling"
    """Nothing but taking steps again."""


class GetState(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="get_state"):
    """Operation: answer with an EngineState once everything sent before has been taken in."""


class StartProfile(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="start_profile"):
    """Operation: record what the runner does; answered with a ProfileState."""


class StopProfile(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="stop_profile"):
    """Operation: write what was recorded to a file; answered with a ProfileState."""


class Sleep(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="sleep"):
    """Operation: take no steps, and give memory back; answered with a RunState once it is given back.

    Level 0 gives nothing back. Level 1 gives back the KV cache, and the weights' memory on a GPU (they wait in the
    host's). Level 2 gives back the weights too; they are read again when they are woken. An engine that sleeps is only
    ever put to sleep deeper.
    """

    level: int
    """0, 1 or 2."""
    mode: PauseMode = PauseMode.ABORT


class WakeUp(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="wake_up"):
    """Operation: take back the memory of these, and take steps again once nothing sleeps any more; answered with a
    RunState."""

    tags: list[SleepTag] = []
    """None of them stands for all."""


class ResetPrefixCache(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="reset_prefix_cache"):
    """Operation: no request finds what earlier ones computed; answered with a CacheReset."""

    reset_running_requests: bool = False
    """Compute those that run again, too: while they hold blocks, the cache cannot be reset."""
    reset_external: bool = False
    """What the engine's connector has is forgotten too, in memory and on the disk; else it is found as before."""


class Pause(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="pause"):
    """Operation: take no steps; answered with a RunState once none is under way."""

    mode: PauseMode = PauseMode.ABORT
    clear_cache: bool = True
    """Reset the prefix cache: what is kept is computed again afterwards."""


class Resume(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="resume"):
    """Operation: the end of a Pause; answered with a RunState."""


class AbortAll(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="abort_all"):
    """Operation: every request ends, with finish reason "abort"; answered with an AllAborted."""


class AddLora(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="add_lora"):
    """Operation: read this adapter, and have it ready if there is a place for it; answered with a LoraState. Requests
    bring theirs themselves: this is to find out whether it can be computed with, before there are any."""

    lora: LoraRequest


class RemoveLora(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="remove_lora"):
    """Operation: give the adapter's memory back as soon as no request has it; answered with a LoraState."""

    lora_id: LoraId


class ListLoras(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="list_loras"):
    """Operation: which adapters are ready to be computed with; answered with a LoraState."""


class PinLora(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="pin_lora"):
    """Operation: keep the adapter, which is ready, until it is removed: others do not take its place; answered with a
    LoraState."""

    lora_id: LoraId


UtilityOperation = (
    GetState
    | StartProfile
    | StopProfile
    | Sleep
    | WakeUp
    | ResetPrefixCache
    | Pause
    | Resume
    | AbortAll
    | AddLora
    | RemoveLora
    | ListLoras
    | PinLora
)
"""The closed union of administrative operations."""


# ------------------------------------------------------------------ what they are answered with


class RunState(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="run_state"):
    """Whether an engine takes steps, and if not, what keeps it from that."""

    is_paused: bool = False
    sleep_level: int | None = None
    """None: it is awake."""
    asleep: list[SleepTag] = []
    """What memory has been given back of: "weights", "kv_cache"."""

    @property
    def is_sleeping(self) -> bool:
        return self.sleep_level is not None

    @property
    def is_held(self) -> bool:
        """Its requests wait."""
        return self.is_paused or self.is_sleeping


class ProfileState(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="profile_state"):
    """Answer to StartProfile and StopProfile: where the trace is written to, and how many steps it has so far."""

    path: str
    """On the engine's machine; in Chrome's trace format."""
    num_steps: int = 0
    is_cut_off: bool = False
    """It had become too long, and ended by itself before it was stopped."""


class CacheReset(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="cache_reset"):
    """Answer to ResetPrefixCache."""

    success: bool
    """False: requests that run hold blocks, and nothing has been reset."""


class AllAborted(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="all_aborted"):
    """Answer to AbortAll."""

    num_requests: int
    """That it ended. A prompt with several choices is as many requests."""
    run_state: RunState


class EngineState(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="engine_state"):
    """Answer to GetState."""

    stats: EngineStats
    request_ids: list[RequestId]
    phase: str
    run_state: RunState | None = None


class LoraState(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="lora_state"):
    """Answer to the operations on adapters."""

    lora_ids: list[LoraId]
    """Those that the runner has, in rising order."""
    pinned: list[LoraId]


UtilityResult = EngineState | RunState | ProfileState | CacheReset | AllAborted | LoraState
