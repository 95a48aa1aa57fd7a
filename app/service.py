"""The composition root of the HTTP side: settings and a checkpoint in; an application out, and what runs beside it.

Used by every way to launch: app/launch.py and app/api_server.py, whose service app/serving.py serves, and
app/hypercorn_command.py, where hypercorn does.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, final

import attrs
from quart_trio import QuartTrio

from app.adapter_paths import adapter_of_module
from app.adapters import Adapter, Adapters, check_name
from app.checkpoints.inspect import Description
from app.checkpoints.resolve import Checkpoint
from app.dialects.choose import choose_dialect
from app.engine_client import ActorEngineClient
from app.factory import create_app
from app.generation_config import generation_config
from app.lora_metrics import LoraCollector
from app.lora_modules import LoraModule
from app.metrics import Metrics
from app.model_card import ModelCard
from app.peers import NoPeers, Peers
from app.pooler_config import pooler
from app.render import ChatTemplate
from app.request_log import RequestLog
from app.response_metrics import ResponseCollector
from app.responses.background import BackgroundResponses
from app.responses.bounds import Bounds
from app.responses.keeper import NothingKept
from app.responses.store import ResponseStore
from app.responses.tool_box import NoToolServers
from app.seeds import choice_seed, seeds
from app.served_harmony import ending_tokens, served_harmony
from app.services import Services
from app.settings import Settings
from app.startup import Startup
from app.startup_metrics import StartupCollector
from app.template_source import read_template
from app.tokenizer import Tokenizer
from app.tool_metrics import ToolCollector
from app.trace_metrics import TraceCollector
from app.tracing.start import open_tracing
from protocol.errors import DeadlineError, EngineDeadError, StartError, TrillmError, UnavailableError
from protocol.operations import AddLora

if TYPE_CHECKING:
    from app.tools.servers import McpServers

logger = logging.getLogger("trillm")


@final
class Service:
    """One API server: the application, the client of the engines, and what the actors are to be."""

    def __init__(
        self,
        settings: Settings,
        checkpoint: Checkpoint,
        description: Description,
        client: ActorEngineClient,
        peers: Peers | None = None,
        startup: Startup | None = None,
        started_at: float | None = None,
    ) -> None:
        """`peers`: the other API servers, if there are any. `startup`: of this server. `started_at`: of the main
        process, in Unix time, where that is another one. Reads the tokeniser, the template and the adapters, which may
        take a second. Raises CheckpointError, and BadRequestError for an adapter that is named as the model is."""
        self.settings = settings
        self.directory = checkpoint.directory
        self.client = client
        names = settings.served_model_name or (checkpoint.name,)
        policy, modules = settings.adapter_policy, settings.modules
        given = settings.chat_template
        template = description.chat_template if given is None else read_template(given)
        tokenizer = Tokenizer.from_checkpoint(checkpoint.directory)
        dialect = choose_dialect(
            settings.tool_call_parser, settings.reasoning_parser, template, tokenizer.special_tokens
        )
        reads_some = dialect.tools is not None or dialect.reasoning is not None
        logger.log(
            logging.INFO if reads_some else logging.DEBUG,
            "tool calls of the model's own accord: %s; thoughts: %s",
            dialect.tools or "not read (nothing shows it tools)",
            dialect.reasoning or "not told apart",
        )
        harmony = served_harmony(dialect, tokenizer, settings.cache_directory)
        jinja = ChatTemplate(template, description.special_tokens) if template else None
        store = response_store(settings)
        self.tool_servers = mcp_servers(settings, store)
        self.services = Services(
            engine=client,
            tokenizer=tokenizer,
            dialect=dialect,
            harmony=harmony,
            template=jinja if harmony is None or given is not None else harmony.template,
            model=ModelCard(
                served_names=names,
                adapters=Adapters(first_adapters(modules, names)),
                checkpoint_name=checkpoint.name,
                created=int(checkpoint.directory.stat().st_mtime),
                eos_token_ids=ending_tokens(description.eos_token_ids, harmony),
                generation_config=generation_config(
                    settings.generation_config, settings.override_generation_config, checkpoint.directory
                ),
            ),
            metrics=Metrics(client, names[0], has_peers=client.identity.has_peers),
            peers=peers or NoPeers(),
            pooler=pooler(settings.pooler_config, checkpoint.directory),
            limits=settings.limits,
            api_keys=settings.api_key,
            special_tokens=description.special_tokens,
            stream_interval=settings.stream_interval,
            return_tokens_as_token_ids=settings.return_tokens_as_token_ids,
            seed=seeds(None if settings.seed is None else choice_seed(settings.seed, client.identity.client)),
            response_keeper=store or NothingKept(),
            background=BackgroundResponses(store),
            tool_servers=self.tool_servers or NoToolServers(),
            cors=settings.cors,
            adapter_policy=policy,
            force_include_usage=settings.enable_force_include_usage,
            response_role=settings.response_role,
            kv_policy=settings.kv_policy,
            keep_alive_seconds=settings.sse_keep_alive_interval or math.inf,
            logs_access=not settings.disable_access_log,
            request_log=RequestLog(settings.enable_log_requests, settings.max_log_len),
            has_console=settings.console,
            tracing=open_tracing(
                settings.otlp_traces_endpoint,
                version("trillm"),
                int(client.identity.client) if client.identity.has_peers else None,
            ),
            version=version("trillm"),
        )
        if started_at is not None:
            self.services = attrs.evolve(self.services, started_at=started_at)
        self._add_collectors(store)
        self.services.metrics.add(StartupCollector(startup or Startup(), self.model_name))
        self.app: QuartTrio = create_app(self.services)

    def _add_collectors(self, store: ResponseStore | None) -> None:
        """Of what not every server has."""
        services, name = self.services, self.model_name
        if services.adapter_policy.is_enabled:
            loras = LoraCollector(self.client, services.adapter_policy.max_loras, services.clock)
            services.metrics.add(loras)
        if store is not None:
            services.metrics.add(ResponseCollector(store, services.background, services.clock, name))
        if (tools := self.tool_servers) is not None:
            services.metrics.add(ToolCollector(tools.counts, lambda: tools.num_sessions, name))
        if services.tracing is not None:
            services.metrics.add(TraceCollector(services.tracing.export, name))

    @property
    def model_name(self) -> str:
        return self.services.model.served_names[0]

    async def run_background(self) -> None:
        """Owns the responses that run without a client, until cancelled. An operator who has said where the store is
        has the service end if it cannot be there."""
        try:
            await self.services.background.run()
        except StartError as error:
            logger.error("--responses-store-path: %s", error.message)
            self.client.give_up(f"--responses-store-path: {error.message}")

    async def run_tools(self) -> None:
        """Keeps sessions with MCP servers, until cancelled."""
        if self.tool_servers is not None:
            await self.tool_servers.run()

    async def run_tracing(self) -> None:
        """Sends spans to their collector, until cancelled."""
        if self.services.tracing is not None:
            await self.services.tracing.run()

    async def check_adapters(self) -> None:
        """Have the engines read those of --lora-modules: what they cannot compute with ends the service, which has
        hardly begun."""
        for adapter in self.services.model.adapters:
            try:
                await self.client.operate(AddLora(adapter.lora))
            except (UnavailableError, DeadlineError, EngineDeadError) as error:
                logger.warning("adapter %s is read when it is needed: %s", adapter.name, error.message)
            except TrillmError as error:
                logger.error("--lora-modules %s: %s", adapter.name, error.message)
                self.client.give_up(f"--lora-modules {adapter.name}: {error.message}")
                return


def response_store(settings: Settings) -> ResponseStore | None:
    """Opened later, in a thread of its own: a disk that does not answer holds nothing up."""
    if not settings.responses_store:
        return None
    bounds = Bounds(max_responses=settings.max_stored_responses, seconds=settings.responses_ttl)
    is_required = settings.responses_store_path is not None
    return ResponseStore(settings.responses_path, bounds=bounds, is_required=is_required)


def mcp_servers(settings: Settings, store: ResponseStore | None) -> McpServers | None:
    """None: the operator neither names nor allows any, and what they need is not loaded."""
    if not (settings.tool_server or settings.allowed_mcp_servers):
        return None
    from app.tools.servers import McpServers
    from app.tools.sessions import ToolSessions

    sessions = ToolSessions(call_seconds=settings.tool_timeout)
    return McpServers(sessions, settings.tool_servers, settings.allowed_servers, store)


def first_adapters(modules: Sequence[LoraModule], served_names: Sequence[str]) -> Iterator[Adapter]:
    """Raises CheckpointError, and BadRequestError for a name that the model has."""
    for module in modules:
        check_name(module.name, served_names)
        lora = adapter_of_module(module)
        yield Adapter(lora, int(Path(lora.path).stat().st_mtime), module.base_model_name)
