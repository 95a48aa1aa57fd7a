"""What the supervisor and its API servers say to each other, where there are several (--api-server-count).

Each API server has a link to the supervisor and one back, for as long as its incarnation lives. Requests and outputs do
not travel here: an API server speaks with engines and with its own output handler itself. What API servers have to know
of each other goes through the supervisor, which does not look into it: shared values and pages are the app's bytes.
"""

from __future__ import annotations

import msgspec

from protocol.ids import EngineIndex, Epoch
from protocol.sampling import Grammar, GrammarSource
from protocol.spec import EngineFacts

# ------------------------------------------------------------------ supervisor -> API server


class EngineCame(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="ENGINE_CAME"):
    """An engine's incarnation is ready: where it takes requests, and where it publishes to this client."""

    engine_index: EngineIndex
    epoch: Epoch
    requests_address: str
    outputs_address: str
    facts: EngineFacts


class EngineWent(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="ENGINE_WENT"):
    """It is gone. Told of every incarnation, also of one that was never ready."""

    engine_index: EngineIndex
    epoch: Epoch
    reason: str
    from_outside: bool


class OutputCame(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="OUTPUT_CAME"):
    """This API server's own output handler is ready."""

    epoch: Epoch
    inbox_address: str
    app_address: str
    """The API server binds its PULL socket here, to which the output handler has connected."""


class OutputWent(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="OUTPUT_WENT"):
    """It is gone, with what it had not said."""

    reason: str


class ActorStanding(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """actors.handles.ActorState, as it travels."""

    name: str
    epoch: Epoch
    pid: int | None
    ready: bool
    phase: str
    phase_seconds: float
    heartbeat_age: float
    progress: float
    restarts: int
    last_end: str | None
    is_needed: bool
    engine_index: EngineIndex | None


class ActorsAre(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="ACTORS_ARE"):
    """Every actor as it is now. Sent twice a second, and before whatever changes them is told."""

    actors: list[ActorStanding]


class HouseOver(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="HOUSE_OVER"):
    """The service cannot go on."""

    reason: str


class StopServing(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="STOP_SERVING"):
    """The supervisor got this signal: the first one drains, the second one ends what is left."""

    signal: int


class GrammarAnswered(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="GRAMMAR_ANSWERED"):
    """Exactly one of grammar and complaint is set."""

    call_id: int
    grammar: Grammar | None
    complaint: str | None = None
    code: str | None = None
    is_busy: bool = False
    """The complaint is not about the grammar: it could not be checked now."""


class SharedIs(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="SHARED_IS"):
    """What API servers share has changed, this one's own change too: all hear the same in the same order."""

    number: int
    key: str
    value: bytes | None
    """None: there is no such thing any more."""


class ShareKnown(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="SHARE_KNOWN"):
    """All API servers that are up have taken what was shared, or have not said so in time."""

    call_id: int


class PageAsked(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="PAGE_ASKED"):
    """Say what you count."""

    call_id: int


class PeerPage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one API server counted."""

    page: bytes
    is_live: bool
    """False: its last word, as it is down, or did not answer in time."""


class PeerPages(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="PEER_PAGES"):
    """Of the others that ever said something. With call_id 0: what the receiver's predecessor counted."""

    call_id: int
    pages: list[PeerPage]


ApiInput = (
    EngineCame
    | EngineWent
    | OutputCame
    | OutputWent
    | ActorsAre
    | HouseOver
    | StopServing
    | GrammarAnswered
    | SharedIs
    | ShareKnown
    | PageAsked
    | PeerPages
)


# ------------------------------------------------------------------ API server -> supervisor


class GrammarAsked(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="GRAMMAR_ASKED"):
    """Have this grammar checked; answered by GrammarAnswered."""

    call_id: int
    source: GrammarSource


class GrammarLeft(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="GRAMMAR_LEFT"):
    """Nobody waits for that answer any more."""

    call_id: int


class ServerIs(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="SERVER_IS"):
    """How an API server is, for the service manager and the log. Sent once a second."""

    is_ready: bool
    reason: str
    """Why it takes no requests."""
    late: str
    """Which engines do not serve."""
    num_requests: int
    num_running: int
    """Of all engines' sequences, also those of other API servers."""
    num_waiting: int
    is_admitted: bool
    """Whether it has taken requests, or would have if there had been any."""


class Share(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="SHARE"):
    """Let all API servers know, also those that are started later; answered by ShareKnown."""

    call_id: int
    key: str
    value: bytes | None


class ShareTaken(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="SHARE_TAKEN"):
    """SharedIs with this number is known here."""

    number: int


class PagesAsked(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="PAGES_ASKED"):
    """What do the others count? Answered by PeerPages."""

    call_id: int


class PageTold(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="PAGE_TOLD"):
    """The answer to PageAsked; with call_id 0 unasked, now and then, so that little is lost with a server."""

    call_id: int
    page: bytes


class CannotGoOn(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="CANNOT_GO_ON"):
    """The service as a whole is to end, for this reason."""

    reason: str


HouseInput = GrammarAsked | GrammarLeft | ServerIs | Share | ShareTaken | PagesAsked | PageTold | CannotGoOn
