"""Bodies and answers of the operator's routes (app/routes/admin.py), with vLLM's names where it has any."""

from __future__ import annotations

import msgspec


class AbortRequestsBody(msgspec.Struct, frozen=True):
    """All requests; ending some of them by their ids is not done here."""

    request_ids: list[str] | None = None


class RunStateAnswer(msgspec.Struct, frozen=True):
    """Whether requests are computed, and if not, what keeps them waiting."""

    status: str
    """"running", "paused" or "sleeping"; "resumed" in answer to /resume."""
    is_paused: bool
    is_sleeping: bool
    sleep_level: int | None
    asleep: list[str]
    """What has given its memory back: "weights", "kv_cache"."""


class AbortAnswer(RunStateAnswer, frozen=True):
    num_aborted: int
    """How many requests were ended; one with several choices is as many."""


class IsSleepingAnswer(msgspec.Struct, frozen=True):
    is_sleeping: bool


class IsPausedAnswer(msgspec.Struct, frozen=True):
    is_paused: bool


class ResetAnswer(msgspec.Struct, frozen=True):
    success: bool
    """False: requests that run use the cache, and nothing has been reset."""


class Profile(msgspec.Struct, frozen=True):
    path: str
    """On the server's machine."""
    num_steps: int
    is_cut_off: bool
    """It had become too long, and ended by itself."""


class ProfilesAnswer(msgspec.Struct, frozen=True):
    """One of each engine."""

    profiles: list[Profile]
