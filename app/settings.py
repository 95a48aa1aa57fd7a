"""Every setting of `trillm serve`, made once from flags, environment and file; the specs of the actors follow from it.

The only place (with app/cli.py, which fills it in) that knows flags, environment variables and files. Names are vLLM's
where the thing is the same.
"""

from __future__ import annotations

import math
import os
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import attrs
from cyclopts import Group, Parameter

from actors.handles import HouseSpec
from app.adapter_paths import AdapterPolicy, resolved_directories
from app.cors_policy import CorsPolicy
from app.dialects.names import check_parser_names
from app.generation_config import read_override
from app.hosts import leading_host
from app.human_number import human_number, human_number_or_auto
from app.kv_config import KvTransferConfig, check_gibibytes, kv_template, read_kv_transfer_config
from app.kv_transfer import KvPolicy
from app.limits import EMBEDDINGS_AT_ONCE, Limits
from app.listed_variable import lines, whole, words
from app.listening_settings import check_listening_settings
from app.logs import LogFormat
from app.lora_modules import LoraModule, read_lora_modules
from app.pooler_config import read_pooler_config
from app.speculative_config import read_speculative_config
from app.tools.address import ToolServer, read_tool_servers
from app.tools.allow_list import AllowedServers
from app.tracing.endpoint import traces_url
from protocol.errors import BadRequestError
from protocol.ids import EngineIndex, Epoch
from protocol.parallel import ParallelSpec
from protocol.spec import DraftModelSpec, EngineSpec, KvSpec, LoadFormat, SpeculativeSpec

SERVER = Group("Server", sort_key=1)
MODEL = Group("Model", sort_key=2)
CACHE = Group("Engine: memory and scheduling", sort_key=3)
LORA = Group("Adapters (LoRA)", sort_key=4)
HOSTS = Group("Hosts, if there are several", sort_key=5)
KV = Group("Keys and values elsewhere (KV connectors)", sort_key=6)

JSON_LIST = Parameter(group=SERVER, json_list=True, negative=())
SEVERAL_WORDS = Parameter(group=SERVER, consume_multiple=True, env_var_split=words, negative=())
KEYS = Parameter(group=SERVER, env_var="VLLM_API_KEY", env_var_split=whole, negative=())
OWN_DEFAULT = Parameter(group=KV, show_default=False)
"""Whose text says what 0 stands for."""
TRACES = Parameter(group=SERVER, env_var="OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
NO_ACCESS_LOG = Parameter(group=SERVER, name=("--disable-access-log", "--disable-uvicorn-access-log"), negative=())

MAX_API_SERVERS = 64
MAX_ENGINES = 64
MAX_RANKS = 64
"""Of all engines together."""
MAX_HOSTS = 64
MAX_LORA_RANK = 512
MAX_ROLE_LENGTH = 64


def check_flag(flag: str, value: int, least: int, most: int) -> None:
    """Raises BadRequestError outside [least, most]."""
    if not least <= value <= most:
        raise BadRequestError(f"{flag} must be from {least} to {most}, not {value}")


def default_cache_directory() -> Path:
    """$XDG_CACHE_HOME/trillm, or ~/.cache/trillm."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trillm"


@attrs.frozen(kw_only=True)
class Settings:
    """What an operator can say. Raises BadRequestError for values that cannot be served."""

    host: Annotated[str, Parameter(group=SERVER)] = "127.0.0.1"
    """Address to listen on. Any but a loopback address needs an --api-key."""
    port: Annotated[int, Parameter(group=SERVER)] = 8000
    """Port to listen on; 0 takes a free one."""
    uds: Annotated[Path | None, Parameter(group=SERVER)] = None
    """Unix socket to listen on instead, whose file only this user may open. What comes over it counts as local."""
    ssl_certfile: Annotated[Path | None, Parameter(group=SERVER)] = None
    """Certificate in PEM, with those between it and a root: speak TLS."""
    ssl_keyfile: Annotated[Path | None, Parameter(group=SERVER)] = None
    """Its key in PEM, not encrypted, unless it is in the same file."""
    ssl_ca_certs: Annotated[Path | None, Parameter(group=SERVER)] = None
    """Who signs the certificates of clients, in PEM."""
    ssl_cert_reqs: Annotated[int, Parameter(group=SERVER)] = 0
    """Certificates of clients: 0 asks for none, 1 checks those that are shown, 2 lets in nobody without."""
    api_key: Annotated[tuple[str, ...], KEYS] = ()
    """A key that clients may use; repeat it for more. Better in the environment than on the command line: one key, or
    a list in JSON."""
    served_model_name: Annotated[tuple[str, ...], SEVERAL_WORDS] = ()
    """Names that requests may call the model; answers tell the first. Default: the model's own name."""
    http2: Annotated[bool, Parameter(group=SERVER)] = True
    """Speak HTTP/2 with who asks for it: over TLS by ALPN, without TLS by its preface."""
    allowed_origins: Annotated[tuple[str, ...], JSON_LIST] = ()
    """Origins of web pages whose scripts may call, as '["https://chat.example"]', or '["*"]'. Default: none."""
    allowed_methods: Annotated[tuple[str, ...], JSON_LIST] = ("*",)
    """Methods that those scripts may use."""
    allowed_headers: Annotated[tuple[str, ...], JSON_LIST] = ("*",)
    """Headers that those scripts may send."""
    allow_credentials: Annotated[bool, Parameter(group=SERVER, negative=())] = False
    """Let those scripts send the browser's cookies along; needs origins by name."""
    middleware: Annotated[tuple[str, ...], Parameter(group=SERVER, negative=(), show=False)] = ()
    """vLLM's flag, which is refused."""
    api_server_count: Annotated[int, Parameter(group=SERVER, name=("--api-server-count", "-asc"))] = 1
    """Processes that take connections and answer, on the same address. More than one where clients have so many streams
    that one cannot write them all."""
    console: Annotated[bool, Parameter(group=SERVER)] = True
    """A page at / for people: the actors as they are, figures, and a chat. What it shows needs a key where keys are
    set. --no-console has none."""
    root_path: Annotated[str, Parameter(group=SERVER)] = ""
    """Path prefix that a proxy in front has not stripped, such as /llm."""
    shutdown_timeout: Annotated[float, Parameter(group=SERVER)] = 30.0
    """Seconds that running answers may take to finish after SIGTERM."""
    send_timeout: Annotated[float, Parameter(group=SERVER)] = 30.0
    """Seconds that a client may refuse to read before its connection is closed."""
    max_body_bytes: Annotated[int, Parameter(group=SERVER)] = 16 * 2**20
    """Largest request body."""
    max_num_queued_reqs: Annotated[int, Parameter(group=SERVER)] = 1024
    """Requests that may wait beyond the --max-num-seqs that run in each engine; the next one gets a 503 with
    Retry-After."""
    responses_store: Annotated[bool, Parameter(group=SERVER)] = True
    """Keep responses, as /v1/responses does unless a request says store=false. --no-responses-store keeps none, and
    takes neither previous_response_id nor background."""
    responses_store_path: Annotated[Path | None, Parameter(group=SERVER)] = None
    """File that they are kept in, which servers of one machine may share. Default: `responses.sqlite3` in the cache
    directory."""
    max_stored_responses: Annotated[int, Parameter(group=SERVER)] = 10_000
    """Responses that are kept (and 4 GiB of them): beyond that the least recently used go."""
    responses_ttl: Annotated[float, Parameter(group=SERVER)] = 30 * 86400.0
    """Seconds that a response is kept after it has ended, or was last gone on from."""
    tool_server: Annotated[tuple[str, ...], Parameter(group=SERVER, env_var_split=lines, negative=())] = ()
    """MCP servers whose tools /v1/responses may call: host:port (which is http://host:port/sse), URLs, with commas
    between them, or one stdio:COMMAND. `label=` before one is what requests call it; else it is its own name."""
    allowed_mcp_servers: Annotated[tuple[str, ...], Parameter(group=SERVER, env_var_split=words, negative=())] = ()
    """URLs with commas between them: requests may bring a `server_url` that is one of these, or lies below it, and what
    such a server leads to has to as well. Default: none."""
    tool_timeout: Annotated[float, Parameter(group=SERVER)] = 60.0
    """Seconds that a call of a tool may take, after which the model reads that it did."""
    profiler_dir: Annotated[Path | None, Parameter(group=SERVER)] = None
    """Where /start_profile has profiles written. Default: `profiles` in the cache directory."""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Parameter(group=SERVER)] = "info"
    """The least that is logged, to stderr."""
    log_format: Annotated[LogFormat, Parameter(group=SERVER)] = "auto"
    """"text" has date and time, "json" is one object a line. "auto" is text; short and coloured on a terminal, and with
    journald's priorities in place of times where that listens."""
    disable_access_log: Annotated[bool, NO_ACCESS_LOG] = False
    """No line in the log for each request when it is over."""
    otlp_traces_endpoint: Annotated[str | None, TRACES] = None
    """Collector of OpenTelemetry traces, as http://localhost:4318/v1/traces: each request becomes a span, with its
    phases inside. More is said by OTEL_* variables. Needs `scripts/install otel`."""
    enable_log_requests: Annotated[bool, Parameter(group=SERVER, negative=())] = False
    """A line for each request before it runs: its parameters, none of its words."""
    max_log_len: Annotated[int, Parameter(group=SERVER)] = 0
    """With --enable-log-requests: so many characters of each prompt as well."""
    enable_force_include_usage: Annotated[bool, Parameter(group=SERVER, negative=())] = False
    """End every stream with its usage, whether or not it was asked for."""
    response_role: Annotated[str, Parameter(group=SERVER)] = "assistant"
    """Role that chat completions tell for the messages they make."""
    sse_keep_alive_interval: Annotated[float, Parameter(group=SERVER)] = 0.0
    """Seconds without anything to tell after which a stream tells a comment, which clients skip; 0 is never."""
    enable_prompt_tokens_details: Annotated[bool, Parameter(group=SERVER, negative=(), show=False)] = False
    """Accepted for vLLM's sake: usage always tells how much of a prompt was cached."""
    enable_request_id_headers: Annotated[bool, Parameter(group=SERVER, negative=(), show=False)] = False
    """Accepted for vLLM's sake: answers always carry X-Request-Id."""
    enable_server_load_tracking: Annotated[bool, Parameter(group=SERVER, negative=(), show=False)] = False
    """Accepted for vLLM's sake: /load always tells."""
    stream_interval: Annotated[int, Parameter(group=SERVER)] = 1
    """Tokens that each event of a stream tells, but for the first and the last; requests may ask for more."""
    return_tokens_as_token_ids: Annotated[bool, Parameter(group=SERVER)] = False
    """Log-probabilities name tokens "token_id:ID" unless a request says otherwise."""
    trust_request_chat_template: Annotated[bool, Parameter(group=SERVER)] = False
    """Requests may bring a `chat_template`. One that is made for it takes any time and memory of the server."""
    request_timeout: Annotated[float, Parameter(group=SERVER)] = 0.0
    """Seconds that a request may take; 0 is no limit. A request's own `timeout` may only be shorter."""
    max_queue_time: Annotated[float, Parameter(group=SERVER)] = 0.0
    """Seconds that a request may wait for its first token before it gets a 503 with Retry-After; 0 is no limit."""

    tool_call_parser: Annotated[str | None, Parameter(group=MODEL)] = None
    """How the model writes tool calls: hermes, qwen3_coder, llama3_json, mistral, pythonic, openai, or none to leave
    them text. Default: what its chat template and vocabulary show, but for pythonic."""
    enable_auto_tool_choice: Annotated[bool, Parameter(group=MODEL)] = False
    """Taken for vLLM's sake: tools are always the model's to choose where a parser is known."""
    reasoning_parser: Annotated[str | None, Parameter(group=MODEL)] = None
    """How the model writes its thoughts: qwen3, deepseek_r1 (which begins with them, without a mark), openai_gptoss, or
    none. Default: as above."""
    revision: Annotated[str | None, Parameter(group=MODEL)] = None
    """Branch, tag or commit of a hub model."""
    download_dir: Annotated[Path | None, Parameter(group=MODEL)] = None
    """Where models are kept. Default: the user's cache directory."""
    chat_template: Annotated[str | None, Parameter(group=MODEL)] = None
    """A file with a Jinja template, or the template itself, instead of the checkpoint's (and of openai-harmony, which
    renders gpt-oss's prompts otherwise)."""
    generation_config: Annotated[str, Parameter(group=MODEL)] = "auto"
    """Where the sampling defaults come from: "auto" is the checkpoint's generation_config.json, "vllm" nowhere, else a
    directory that has such a file."""
    pooler_config: Annotated[str | None, Parameter(group=MODEL)] = None
    """JSON: {"pooling_type": "MEAN", "normalize": true} makes embeddings so (LAST, MEAN or CLS), and not as the
    checkpoint says."""
    override_generation_config: Annotated[str | None, Parameter(group=MODEL)] = None
    """JSON with defaults that go before those: {"temperature": 0.7, "max_new_tokens": 1024}. (The last is a limit.)"""
    seed: Annotated[int | None, Parameter(group=MODEL)] = None
    """Where the seeds of requests without one come from: the same seed gives the same ones in the same order."""
    load_format: Annotated[Literal["auto", "dummy"], Parameter(group=MODEL)] = "auto"
    """"dummy" reads no weights and runs no model: a deterministic token function, for trying out clients."""
    device: Annotated[Literal["auto", "cpu", "cuda"], Parameter(group=MODEL)] = "auto"
    """What computes; "auto" is a GPU where torch sees one."""
    dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16", "int8"], Parameter(group=MODEL)] = "auto"
    """"auto" is float32 on a CPU and the checkpoint's own type on a GPU."""
    quantization: Annotated[Literal["fp8"] | None, Parameter(group=MODEL, name=("--quantization", "-q"))] = None
    """"fp8" rounds the weights to 8 bits when they are loaded, on GPUs that multiply them."""
    max_model_len: Annotated[int | None, Parameter(group=MODEL, converter=human_number_or_auto)] = None
    """Tokens of prompt and output together: 8192, 8k (8000) or 8K (8192). Default, and "auto": the model's own limit,
    or what the KV pool holds if less."""
    max_logprobs: Annotated[int, Parameter(group=MODEL)] = 20
    """Most alternatives per position that a request may ask for."""

    max_num_seqs: Annotated[int, Parameter(group=CACHE)] = 64
    """Sequences in one batch."""
    max_num_batched_tokens: Annotated[int, Parameter(group=CACHE, converter=human_number)] = 512
    """Tokens in one step; longer prompts are prefilled in chunks."""
    block_size: Annotated[int, Parameter(group=CACHE)] = 16
    """Tokens in one KV block."""
    num_gpu_blocks_override: Annotated[int | None, Parameter(group=CACHE)] = None
    """KV blocks, instead of what the memory allows (vLLM's name; on a CPU too)."""
    kv_cache_memory_bytes: Annotated[int | None, Parameter(group=CACHE, converter=human_number)] = None
    """Memory for the KV pool: 8G is 8 GiB, 8g is 8 GB. Default: a share of what is free."""
    kv_cache_dtype: Annotated[Literal["auto", "fp8", "fp8_e4m3", "fp8_e5m2"], Parameter(group=CACHE)] = "auto"
    """What keys and values are kept in. "fp8" (which is e4m3) has room for twice the tokens of a 16-bit cache, and is
    less exact; the CPU kernels refuse it."""
    scheduling_policy: Annotated[Literal["fcfs", "priority"], Parameter(group=CACHE)] = "fcfs"
    """"priority" runs requests with a lower `priority` first."""
    enable_prefix_caching: Annotated[bool, Parameter(group=CACHE)] = True
    """Requests that begin alike share what has been computed for that beginning, while it is in memory."""
    long_prefill_token_threshold: Annotated[int, Parameter(group=CACHE)] = 0
    """Most tokens of one prompt in a step; 0 is no limit but --max-num-batched-tokens."""
    speculative_config: Annotated[str | None, Parameter(group=CACHE, name=("--speculative-config", "-sc"))] = None
    """JSON: {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2} guesses
    what follows by what followed before, {"method": "draft_model", "model": MODEL, "num_speculative_tokens": 4} by a
    smaller model with the same tokeniser. No token changes; where guesses are right, answers come faster."""
    async_scheduling: Annotated[bool | None, Parameter(group=CACHE)] = None
    """Plan each step while the one before it runs. Default: unless a CPU computes."""
    enforce_eager: Annotated[bool, Parameter(group=CACHE)] = False
    """On a GPU, launch every step operator by operator, not as a recorded graph."""
    batch_invariant: Annotated[bool, Parameter(group=CACHE)] = False
    """Compute a sequence to the same bits whatever runs beside it, or refuse to start. The CPU kernels always do."""
    data_parallel_size: Annotated[int, Parameter(group=CACHE, name=("--data-parallel-size", "-dp"))] = 1
    """Engines, each with the whole model (whose weights they share on a CPU), GPUs, a KV cache and a batch of its own.
    A request goes to the one that is done with it soonest."""
    tensor_parallel_size: Annotated[int, Parameter(group=CACHE, name=("--tensor-parallel-size", "-tp"))] = 1
    """Processes, each with a GPU where that computes, among which every layer of an engine's model is cut: heads, inner
    rows, vocabulary."""
    pipeline_parallel_size: Annotated[int, Parameter(group=CACHE, name=("--pipeline-parallel-size", "-pp"))] = 1
    """Stages, each with some of the layers. An engine has as many processes as the product of both."""
    enable_expert_parallel: Annotated[
        bool, Parameter(group=CACHE, name=("--enable-expert-parallel", "-ep"), negative=())
    ] = False
    """Spread a model's experts over the --tensor-parallel-size processes whole, instead of cutting each."""
    nnodes: Annotated[int, Parameter(group=HOSTS, name=("--nnodes", "-n"))] = 1
    """Hosts that the processes of each engine lie on, each with as many. All are given the same flags but --node-rank.
    Whoever can reach the ports of what they compute can disturb them: use a network of their own."""
    node_rank: Annotated[int, Parameter(group=HOSTS, name=("--node-rank", "-r"))] = 0
    """Which of them this is. 0 is the one that serves; the others only compute."""
    master_addr: Annotated[str, Parameter(group=HOSTS)] = ""
    """Name or address of host 0, by which the others reach it."""
    master_port: Annotated[int, Parameter(group=HOSTS)] = 29501
    """Port on which host 0 hears the others; what the ranks compute takes the ports after it, one for each engine, and
    free ones."""
    headless: Annotated[bool, Parameter(group=HOSTS, negative=())] = False
    """Taken for vLLM's sake: hosts with a --node-rank above 0 never serve."""
    node_key_file: Annotated[Path | None, Parameter(group=HOSTS)] = None
    """File with 32 bytes or more that nobody can guess, the same on all hosts: who does not know them is not heard."""
    threads: Annotated[int | None, Parameter(group=CACHE)] = None
    """Compute threads of each engine on a CPU, or of each of its ranks. Default: its share of the cores, less one for
    the server if there are more than two."""
    engine_standby: Annotated[bool, Parameter(group=CACHE)] = True
    """Keep a process ready for the engine to be started again in: it is then back a second or two earlier, for some
    200 MB of memory. Not with the dummy model, which starts at once."""
    dummy_step_seconds: Annotated[float, Parameter(group=CACHE)] = 0.0
    """How long a step of the dummy model takes."""

    kv_offloading_size: Annotated[float, OWN_DEFAULT] = 0.0
    """GiB of the host's memory, of all engines together, for what was computed and has no room in their KV caches. It
    outlives engines. Default: none, or 1 for each engine if one of the other flags asks for connectors."""
    kv_offloading_backend: Annotated[Literal["native"], Parameter(group=KV, show=False)] = "native"
    """Taken for vLLM's sake: there is one."""
    kv_offloading_path: Annotated[Path | None, Parameter(group=KV)] = None
    """Directory where it is kept beyond that, also over a restart of the server."""
    kv_offloading_disk_size: Annotated[float, OWN_DEFAULT] = 0.0
    """GiB of all engines together that are kept there. Default: 16."""
    prefill_engines: Annotated[int, Parameter(group=KV)] = 0
    """Engines that compute prompts and first tokens, and give what they have to --decode-engines, which do the rest: so
    that long prompts hold up nobody's stream. Instead of --data-parallel-size."""
    decode_engines: Annotated[int, Parameter(group=KV)] = 0
    """Engines that go on after the first token."""
    kv_transfer_config: Annotated[str | None, Parameter(group=KV)] = None
    """JSON: {"kv_role": "kv_both", "kv_ip": "10.0.0.1", "kv_port": 14579, "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"key_file": FILE, "allowed_peers": ["10.0.0.2:14579"], "lease_seconds": 30,
    "transports": ["shm", "nixl", "tcp"]}} lets servers of trillm take over each other's prompts, as requests say in
    `kv_transfer_params`: those with the same key."""

    enable_lora: Annotated[bool, Parameter(group=LORA)] = False
    """Compute requests with LoRA adapters whose `model` names one. --lora-modules implies it."""
    lora_modules: Annotated[
        tuple[str, ...], Parameter(group=LORA, consume_multiple=True, env_var_split=words, negative=())
    ] = ()
    """Adapters that are there from the start: name=path each, or {"name": NAME, "path": PATH, "base_model_name": MODEL}
    in JSON. The path is that of a directory with a PEFT checkpoint."""
    max_loras: Annotated[int, Parameter(group=LORA)] = 4
    """Adapters in one batch, and in the engine's memory. Requests for more wait until one is not in use."""
    max_cpu_loras: Annotated[int | None, Parameter(group=LORA)] = None
    """Adapters that are kept in the host's memory once they have been read; at least --max-loras. Default: none, and
    they are read again when they are needed again."""
    max_lora_rank: Annotated[int, Parameter(group=LORA)] = 16
    """Highest rank of an adapter that is taken; up to 512."""
    allow_runtime_lora_updating: Annotated[bool, Parameter(group=LORA, env_var="VLLM_ALLOW_RUNTIME_LORA_UPDATING")] = (
        False
    )
    """Let clients load and unload adapters by /v1/load_lora_adapter and /v1/unload_lora_adapter."""
    allowed_lora_dirs: Annotated[tuple[Path, ...], Parameter(group=LORA, consume_multiple=True, negative=())] = ()
    """Directories below which clients may load adapters. Default: whatever the server can read."""

    def __attrs_post_init__(self) -> None:
        check_listening_settings(self)
        if not 1 <= len(self.response_role) <= MAX_ROLE_LENGTH:
            raise BadRequestError(
                f"--response-role must have 1 to {MAX_ROLE_LENGTH} characters, and has {len(self.response_role)}"
            )
        check_flag("--max-lora-rank", self.max_lora_rank, 1, MAX_LORA_RANK)
        check_flag("--data-parallel-size", self.data_parallel_size, 1, MAX_ENGINES)
        check_flag("--api-server-count", self.api_server_count, 1, MAX_API_SERVERS)
        self._check_ranks()
        self._check_hosts()
        self._check_connectors()
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.max_loras:
            raise BadRequestError(
                f"--max-cpu-loras must be at least --max-loras ({self.max_loras}), and is {self.max_cpu_loras}"
            )
        self.modules, self.adapter_policy  # noqa: B018  raise for what cannot be read
        read_speculative_config(self.speculative_config)
        check_parser_names(self.tool_call_parser, self.reasoning_parser)
        self.tool_servers, self.allowed_servers  # noqa: B018  raise for what cannot be read
        read_override(self.override_generation_config)
        read_pooler_config(self.pooler_config)
        if self.middleware:
            raise BadRequestError(
                "--middleware is not supported: no code from outside runs in this server. "
                "What it would do belongs in a proxy in front"
            )
        if self.otlp_traces_endpoint:
            traces_url(self.otlp_traces_endpoint)
        self.cors  # noqa: B018  raise for what does not belong together
        positive = ("max_num_seqs", "max_num_batched_tokens", "block_size", "max_model_len", "num_gpu_blocks_override")
        values = attrs.asdict(self)
        others = ("kv_cache_memory_bytes", "threads", "max_body_bytes", "stream_interval", "max_loras")
        for name in (*positive, *others, "max_stored_responses", "responses_ttl", "tool_timeout"):
            if values[name] is not None and not values[name] >= 1:
                raise BadRequestError(f"--{name.replace('_', '-')} must be at least 1, not {values[name]}")
        seconds = ("shutdown_timeout", "send_timeout", "dummy_step_seconds", "request_timeout", "max_queue_time")
        numbers = ("max_num_queued_reqs", "max_logprobs", "long_prefill_token_threshold", "max_log_len")
        for name in (*seconds, "sse_keep_alive_interval", *numbers):
            if not values[name] >= 0:  # NaN is not, either
                raise BadRequestError(f"--{name.replace('_', '-')} must not be negative, and is {values[name]}")

    def _check_ranks(self) -> None:
        check_flag("--tensor-parallel-size", self.tensor_parallel_size, 1, MAX_RANKS)
        check_flag("--pipeline-parallel-size", self.pipeline_parallel_size, 1, MAX_RANKS)
        processes = self.num_engines * self.parallel.world
        if self.parallel.world > 1 and processes > MAX_RANKS:
            raise BadRequestError(
                "the numbers of engines, --tensor-parallel-size and --pipeline-parallel-size ask for "
                f"{processes} processes, and {MAX_RANKS} is the limit"
            )

    def _check_hosts(self) -> None:
        check_flag("--nnodes", self.nnodes, 1, MAX_HOSTS)
        if not 0 <= self.node_rank < self.nnodes:
            raise BadRequestError(f"--node-rank must be from 0 to {self.nnodes - 1} (--nnodes), not {self.node_rank}")
        if self.headless and self.node_rank == 0:
            raise BadRequestError("--headless is for hosts with a --node-rank above 0: host 0 serves")
        if self.nnodes == 1:
            return
        if self.parallel.world % self.nnodes:
            raise BadRequestError(
                f"--tensor-parallel-size times --pipeline-parallel-size is {self.parallel.world}, "
                f"which --nnodes {self.nnodes} does not divide"
            )
        if not self.master_addr or self.node_key_file is None:
            missing = "--node-key-file" if self.master_addr else "--master-addr"
            raise BadRequestError(f"--nnodes {self.nnodes} needs a {missing}")
        check_flag("--master-port", self.master_port, 1, 65535 - self.data_parallel_size)

    def _check_connectors(self) -> None:
        check_gibibytes("--kv-offloading-size", self.kv_offloading_size)
        check_gibibytes("--kv-offloading-disk-size", self.kv_offloading_disk_size)
        if self.kv_offloading_disk_size and self.kv_offloading_path is None:
            raise BadRequestError("--kv-offloading-disk-size needs a --kv-offloading-path")
        roles = {"--prefill-engines": self.prefill_engines, "--decode-engines": self.decode_engines}
        for flag, number in roles.items():
            check_flag(flag, number, 0, MAX_ENGINES)
        if any(roles.values()):
            if not all(roles.values()):
                raise BadRequestError("--prefill-engines and --decode-engines need each other")
            if self.data_parallel_size > 1:
                raise BadRequestError(
                    "--prefill-engines and --decode-engines say how many engines there are, "
                    "and --data-parallel-size does, too"
                )
            check_flag("the sum of --prefill-engines and --decode-engines", self.num_engines, 2, MAX_ENGINES)
        transfer = self.kv_transfer
        if transfer is not None and transfer.kv_port:
            check_flag("--kv-transfer-config: kv_port", transfer.kv_port, 1, 65536 - self.num_engines)
        if not self.has_connectors:
            return
        if self.nnodes > 1:
            raise BadRequestError(
                f"an engine over several hosts (--nnodes {self.nnodes}) has no KV connector: leave out --kv-…, "
                "--prefill-engines and --decode-engines"
            )
        if not self.enable_prefix_caching:
            raise BadRequestError("KV connectors know blocks by their prefixes: they need --enable-prefix-caching")

    @property
    def has_connectors(self) -> bool:
        return bool(
            self.kv_offloading_size
            or self.kv_offloading_path
            or self.prefill_engines
            or self.kv_transfer_config is not None
        )

    @property
    def kv_transfer(self) -> KvTransferConfig | None:
        return read_kv_transfer_config(self.kv_transfer_config)

    @property
    def kv_policy(self) -> KvPolicy:
        transfer = self.kv_transfer
        must_load = transfer is not None and transfer.kv_load_failure_policy == "fail"
        return KvPolicy(self.has_connectors, must_load)

    @property
    def num_engines(self) -> int:
        return self.prefill_engines + self.decode_engines or self.data_parallel_size

    @property
    def connectors(self) -> KvSpec | None:
        """Of the engines; None: they have none."""
        if not self.has_connectors:
            return None
        return kv_template(
            self.kv_transfer,
            self.num_engines,
            window_gibibytes=self.kv_offloading_size,
            disk=self.kv_offloading_path,
            disk_gibibytes=self.kv_offloading_disk_size,
        )

    @property
    def parallel(self) -> ParallelSpec:
        """How each engine's model lies over ranks."""
        return ParallelSpec(self.tensor_parallel_size, self.pipeline_parallel_size, self.enable_expert_parallel)

    @property
    def cache_directory(self) -> Path:
        return self.download_dir or default_cache_directory()

    @property
    def responses_path(self) -> Path:
        return self.responses_store_path or self.cache_directory / "responses.sqlite3"

    @property
    def tool_servers(self) -> tuple[ToolServer, ...]:
        return read_tool_servers(self.tool_server)

    @property
    def allowed_servers(self) -> AllowedServers:
        return AllowedServers.of(self.allowed_mcp_servers)

    @property
    def max_live_requests(self) -> int:
        """Requests running or queued, before the next one is turned away."""
        return self.num_engines * self.max_num_seqs + self.max_num_queued_reqs

    @property
    def cors(self) -> CorsPolicy:
        return CorsPolicy(self.allowed_origins, self.allowed_methods, self.allowed_headers, self.allow_credentials)

    @property
    def modules(self) -> list[LoraModule]:
        """The adapters of --lora-modules."""
        return read_lora_modules(self.lora_modules)

    @cached_property
    def adapter_policy(self) -> AdapterPolicy:
        """Its directories are those that were there at the start, whatever links become later."""
        return AdapterPolicy(
            is_enabled=self.enable_lora or bool(self.lora_modules),
            allows_updates=self.allow_runtime_lora_updating,
            max_loras=self.max_loras,
            directories=resolved_directories(self.allowed_lora_dirs),
        )

    @property
    def limits(self) -> Limits:
        return Limits(
            max_body_bytes=self.max_body_bytes,
            max_logprobs=self.max_logprobs,
            trusts_chat_templates=self.trust_request_chat_template,
            request_seconds=self.request_timeout or math.inf,
            max_embeddings_at_once=min(EMBEDDINGS_AT_ONCE, self.max_live_requests),
        )

    @property
    def speculative(self) -> SpeculativeSpec | DraftModelSpec | None:
        """A draft model is named as in --speculative-config."""
        return read_speculative_config(self.speculative_config)

    def house(self, checkpoint: Path, draft: Path | None = None) -> HouseSpec:
        """The actors that serve this checkpoint directory; `draft` is that of the draft model, if there is one."""
        speculative = self.speculative
        if isinstance(speculative, DraftModelSpec) and draft is not None:
            speculative = DraftModelSpec(speculative.num_speculative_tokens, str(draft))
        engine = EngineSpec(
            engine_index=EngineIndex(0),
            epoch=Epoch(0),
            requests_address="",
            outputs_addresses={},
            checkpoint=str(checkpoint),
            load_format=LoadFormat(self.load_format),
            device=self.device,
            dtype=self.dtype,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            block_size=self.block_size,
            num_gpu_blocks_override=self.num_gpu_blocks_override,
            kv_cache_memory_bytes=self.kv_cache_memory_bytes,
            kv_cache_dtype=self.kv_cache_dtype,
            max_loras=self.max_loras if self.adapter_policy.is_enabled else 0,
            max_lora_rank=self.max_lora_rank,
            max_cpu_loras=self.max_cpu_loras or 0,
            scheduling_policy=self.scheduling_policy,
            enable_prefix_caching=self.enable_prefix_caching,
            async_scheduling=self.async_scheduling,
            speculative=speculative,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            quantization=self.quantization,
            enforce_eager=self.enforce_eager,
            batch_invariant=self.batch_invariant,
            threads=self.threads,
            parallel=self.parallel,
            max_logprobs=self.max_logprobs,
            dummy_step_seconds=self.dummy_step_seconds,
            cache_directory=str(self.cache_directory),
            profiler_directory=str((self.profiler_dir or self.cache_directory / "profiles").absolute()),
        )
        hosts = leading_host(self, checkpoint)
        return HouseSpec(engine, self.num_engines, self.engine_standby, hosts=hosts, kv=self.connectors)
