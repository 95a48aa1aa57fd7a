"""Everything that the HTTP side works with, made by app/service.py (or by a test) and handed to create_app."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from attrs import field, frozen

from app.adapter_paths import AdapterPolicy
from app.checkpoints.pooler import Pooler
from app.cors_policy import CorsPolicy
from app.dialects.dialect import Dialect
from app.drain import Drain
from app.engine import EngineClient
from app.kv_transfer import KvPolicy
from app.limits import Limits
from app.metrics import Metrics
from app.model_card import ModelCard
from app.peers import NoPeers, Peers
from app.render import Template
from app.request_log import RequestLog
from app.responses.background import BackgroundResponses
from app.responses.keeper import NothingKept, ResponseKeeper
from app.responses.tool_box import NoToolServers, ToolServers
from app.seeds import seeds
from app.tokenizer import Tokenizer
from protocol.errors import UnavailableError
from protocol.spec import EngineFacts

if TYPE_CHECKING:
    from app.harmony.harmony import Harmony
    from app.tracing.start import Tracing


@frozen
class Services:
    """The composition root's product. Nothing in it is replaced while serving."""

    engine: EngineClient
    tokenizer: Tokenizer
    template: Template | None
    """None: the checkpoint has no chat template, and chats are refused."""
    model: ModelCard
    metrics: Metrics
    dialect: Dialect = field(factory=Dialect)
    """How the model writes thoughts and calls; the default reads neither."""
    harmony: Harmony | None = None
    """Reads a gpt-oss model's answers by their tokens. None: by their text, as the dialect says."""
    pooler: Pooler = field(factory=Pooler)
    """What embeddings are made of."""
    limits: Limits = field(factory=Limits)
    drain: Drain = field(factory=Drain)
    """Ends what is still being sent to us when the server stops."""
    api_keys: tuple[str, ...] = ()
    """Empty: every route is open to whoever comes in over a loopback address."""
    adapter_policy: AdapterPolicy = field(factory=AdapterPolicy)
    """What of adapters clients may do."""
    response_keeper: ResponseKeeper = field(factory=NothingKept)
    """Where responses stay after they were told."""
    background: BackgroundResponses = field(factory=BackgroundResponses)
    """The responses that run without a client. Its `run` is somebody's task."""
    peers: Peers = field(factory=NoPeers)
    """The other API servers on the same listening socket."""
    cors: CorsPolicy = field(factory=CorsPolicy)
    """Which web pages may call."""
    special_tokens: dict[str, str] = field(factory=dict)
    """bos_token, eos_token, …: variables of chat templates."""
    stream_interval: int = 1
    """Tokens that each event of a stream tells at least, but for the first and the last."""
    return_tokens_as_token_ids: bool = False
    """Log-probabilities name tokens by their ids, unless a request says otherwise."""
    force_include_usage: bool = False
    """Streams end with a chunk of usage, whether or not that was asked for."""
    response_role: str = "assistant"
    """Whose message a chat completion is said to be, unless it goes on with one that the request has."""
    kv_policy: KvPolicy = field(factory=KvPolicy)
    """Whether prompts come from other servers, or go there."""
    keep_alive_seconds: float = math.inf
    """A stream that has nothing to tell for so long tells a comment."""
    logs_access: bool = True
    """Each request is a line in the log when it is over."""
    request_log: RequestLog = field(factory=RequestLog)
    tool_servers: ToolServers = field(factory=NoToolServers)
    """Which MCP servers may be asked, and the way to them."""
    tracing: Tracing | None = None
    """Makes and sends spans; None: nobody wants any. Its `run` is somebody's task."""
    has_console: bool = True
    """Whether there is a page at /."""
    version: str = "0.0.0"
    clock: Callable[[], float] = time.time
    """Unix time in seconds, for the `created` fields."""
    started_at: float = field(factory=time.time)
    """By that clock."""
    seed: Callable[[], int] = field(factory=seeds)
    """Gives the seed of a request that has none."""

    @property
    def fingerprint(self) -> str:
        return f"trillm-{self.version}"

    def facts(self) -> EngineFacts:
        """What the engine learnt while it started. Raises UnavailableError until then."""
        facts = self.engine.facts
        if facts is None:
            raise UnavailableError(f"Not ready: {self.engine.readiness.reason or 'the engine is starting'}")
        return facts

    def vocab_size(self) -> int:
        """Token ids below this have both an embedding and a spelling. Ids that only pad the embedding are refused:
        they were never trained and stand for no text."""
        return min(self.facts().vocab_size, self.tokenizer.vocab_size)
