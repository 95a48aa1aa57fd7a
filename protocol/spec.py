"""The small frozen specs that actors start from. Made once by app/settings.py; nobody changes them.

What an actor learns while it starts (block count, real context length) travels back in its Ready message.
"""

from __future__ import annotations

import enum

import msgspec

from protocol.curve import CurveKeys
from protocol.ids import ClientIndex, EngineIndex, Epoch
from protocol.kv import KvLayout, KvWindow
from protocol.parallel import ParallelSpec
from protocol.sampling import Grammar, GrammarSource
from protocol.tensors import FileTensor


class LoadFormat(enum.StrEnum):
    """How the weights are had. `dummy`: no weights and no torch, a deterministic token function (gpu/fake_runner)."""

    AUTO = "auto"
    DUMMY = "dummy"


class SpeculativeSpec(msgspec.Struct, frozen=True, tag="ngram"):
    """Guessing tokens by n-grams: the last tokens went on somehow when they were there before. Checked by the app."""

    num_speculative_tokens: int
    """Most guesses for one sequence in a step; at least 1."""
    prompt_lookup_max: int
    """Tokens of the longest and the shortest n-gram that is looked up; 1 <= min <= max."""
    prompt_lookup_min: int


class DraftModelSpec(msgspec.Struct, frozen=True, tag="draft_model"):
    """Guessing tokens by a smaller model with the same tokeniser, which the runner computes beside the served one."""

    num_speculative_tokens: int
    """Most guesses for one sequence in a step; at least 1."""
    checkpoint: str
    """A checkpoint directory, as that of the model. (In the app, until it is resolved: what the operator named.)"""


class EngineSpec(msgspec.Struct, frozen=True, tag="engine"):
    """Everything that an engine process needs to start."""

    engine_index: EngineIndex
    epoch: Epoch
    requests_address: str
    """The engine binds its PULL socket here."""
    outputs_addresses: dict[ClientIndex, str]
    """The engine binds one XPUB socket per client."""
    checkpoint: str
    """A checkpoint directory: config.json, tokenizer.json, and weights (see app/checkpoints)."""
    load_format: LoadFormat = LoadFormat.AUTO
    device: str = "auto"
    """"auto", "cpu" or "cuda"."""
    dtype: str = "auto"
    """"auto", "float32", "bfloat16", "float16", or "int8" (the CPU kernels with coarser activations)."""
    max_model_len: int | None = None
    """Tokens of prompt and output together; None takes the model's own limit (cut to what the KV pool holds)."""
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    """Token budget of one step; longer prompts are prefilled in chunks."""
    block_size: int = 16
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    """None: a share of the memory that is free (see gpu/kv_pool.py)."""
    scheduling_policy: str = "fcfs"
    """"fcfs" or "priority"."""
    threads: int | None = None
    """Compute threads on CPU; None leaves one core for the other processes if there are more than two."""
    max_logprobs: int = 20
    dummy_step_seconds: float = 0.0
    """How long the dummy runner's step takes."""
    cache_directory: str | None = None
    """Where built CPU kernels and laid-out weights are kept; None keeps none."""
    enable_prefix_caching: bool = True
    """Sequences with the same beginning share its KV blocks."""
    long_prefill_token_threshold: int = 0
    """Most tokens of one prompt in a step; 0 is no limit of its own."""
    speculative: SpeculativeSpec | DraftModelSpec | None = None
    """None guesses nothing. Steps are then not planned ahead: guesses need the tokens before them."""
    async_scheduling: bool | None = None
    """Plan each step while the one before it runs. None: unless the runner computes on the CPU, whose cores have then
    nothing to gain from it."""
    quantization: str | None = None
    """"fp8": weights rounded to 8 bits when they are loaded, on GPUs that multiply them; None leaves them."""
    enforce_eager: bool = False
    """Record no CUDA graphs."""
    batch_invariant: bool = False
    """Compute a sequence's logits to the same bits in any batch, or refuse to start."""
    curve: CurveKeys | None = None
    """For addresses that are tcp://; None: they are all ipc://."""
    profiler_directory: str | None = None
    """Where profiles are written; None refuses them."""
    weights_seconds: float | None = None
    """How long to wait for the weights actor before loading without it, beside the time that the checkpoint's size
    takes at a slow rate (gpu/shared_weights); None: there is none."""
    kv_cache_dtype: str = "auto"
    """"auto" keeps keys and values as they are computed; "fp8", "fp8_e4m3" and "fp8_e5m2" round them to 8 bits."""
    max_loras: int = 0
    """Adapters that the runner holds at once, and so the most in one batch; 0 refuses requests with adapters."""
    max_lora_rank: int = 16
    max_cpu_loras: int = 0
    """Adapters that are kept in the host's memory once they have been read, so that they need not be read again."""
    parallel: ParallelSpec = ParallelSpec()
    """How the model lies over ranks; by default this process is the only one."""
    num_engines: int = 1
    """Engines of this machine, which share its processors and its memory."""
    rendezvous: str = ""
    """Where the ranks find each other (gpu/groups/rendezvous): another place for each incarnation. Empty where there is
    one rank only."""
    num_hosts: int = 1
    """That the ranks lie on, each with as many as the others and in the order of the ranks."""
    kv_address: str = ""
    """The engine binds a PULL socket here, for what its connector says; empty where it has none."""
    kv_seconds: float = 5.0
    """How long a request waits for its connector to find KV, before it is computed."""

    @property
    def ranks_per_host(self) -> int:
        """Of this engine: they share the host's processors, memory and GPUs."""
        return self.parallel.world // self.num_hosts


class RankSpec(msgspec.Struct, frozen=True, tag="rank"):
    """Everything that a rank needs to start which follows the engine's own process."""

    epoch: Epoch
    """That of the engine: they live and die together."""
    engine: EngineSpec
    rank: int
    """Its place in the world, from 1; the engine's process has 0."""


class OutputSpec(msgspec.Struct, frozen=True, tag="output"):
    """Everything that an output handler needs to start."""

    client_index: ClientIndex
    epoch: Epoch
    inbox_address: str
    """The output handler binds its PULL socket here."""
    app_address: str
    """The app has bound a PULL socket here; the output handler connects its PUSH."""
    checkpoint: str
    curve: CurveKeys | None = None
    """For addresses that are tcp://; None: they are all ipc://."""


class ApiSpec(msgspec.Struct, frozen=True, tag="api"):
    """Everything that one of several API servers needs to start."""

    client_index: ClientIndex
    epoch: Epoch
    num_servers: int
    inbox_address: str
    """The API server binds its PULL socket here."""
    house_address: str
    """The supervisor has bound a PULL socket here; the API server connects its PUSH."""
    listeners: list[int]
    """Descriptors of the listening sockets, which it inherits."""
    serving: bytes
    """What the app made of its settings, for itself."""
    key: bytes
    """Of the links to and from the supervisor: what is said there nobody else is to say."""


class KvSpec(msgspec.Struct, frozen=True, tag="kv"):
    """Everything that the KV connector of one engine needs to start."""

    engine_index: EngineIndex
    epoch: Epoch
    inbox_address: str
    """The connector binds its PULL socket here."""
    engine_id: str
    """Names the engine to other connectors, over all its incarnations."""
    key: bytes
    """Signs tickets, and is what connectors prove to each other that they know."""
    window_bytes: int
    """Memory for frames."""
    disk_path: str | None = None
    """A directory for blocks that memory has no room for, and for the time after a restart; None: none."""
    disk_bytes: int = 0
    peer_path: str | None = None
    """Of the socket where connectors of this host reach this one; None: they do not."""
    peer_host: str | None = None
    """The address at which connectors of other hosts reach this one, over TCP; None: they do not."""
    peer_port: int = 0
    """0: any."""
    allowed_peers: list[str] = []
    """host:port of connectors that are asked although their tickets are not signed with `key`."""
    transports: list[str] = []
    """By name, the best first; empty: what works."""
    lease_seconds: float = 30.0
    """How long what was exported is kept for whoever has the ticket, unless it says that it is at it."""


class GrammarSpec(msgspec.Struct, frozen=True, tag="grammar"):
    """Everything that a grammar checker needs to start."""

    epoch: Epoch
    checkpoint: str


class WeightsSpec(msgspec.Struct, frozen=True, tag="weights"):
    """Everything that a weights actor needs to start."""

    epoch: Epoch
    engine: EngineSpec
    """Those that are to map the weights: what they would load, it loads for them."""


class StandbySpec(msgspec.Struct, frozen=True, tag="standby"):
    """For a process that is to become an engine: it imports what engines need, says Ready, and waits for another Start.
    Until that it does not beat."""

    epoch: Epoch


ActorSpec = EngineSpec | RankSpec | OutputSpec | ApiSpec | GrammarSpec | WeightsSpec | StandbySpec | KvSpec


class EngineFacts(msgspec.Struct, frozen=True, tag="engine_facts"):
    """What an engine learnt while it started."""

    max_model_len: int
    num_blocks: int
    block_size: int
    vocab_size: int
    """Rows of the embedding: token ids from 0 up to this are computable."""
    device: str
    dtype: str
    weights_bytes: int
    kv_cache_bytes: int
    hidden_size: int = 0
    """Numbers in a hidden state, and so in an embedding."""
    kv_layout: KvLayout | None = None
    """What the bytes of its blocks are; None where they cannot be copied."""


class RankFacts(msgspec.Struct, frozen=True, tag="rank_facts"):
    """What a rank learns, the engine tells."""


class OutputFacts(msgspec.Struct, frozen=True, tag="output_facts"):
    """What an output handler learnt while it started."""

    vocab_size: int
    """Ids that the tokeniser knows."""


class ApiFacts(msgspec.Struct, frozen=True, tag="api_facts"):
    """An API server learns nothing that others need."""


class GrammarFacts(msgspec.Struct, frozen=True, tag="grammar_facts"):
    """A grammar checker learns nothing that others need."""


class SharedWeights(msgspec.Struct, frozen=True):
    """The weights of one checkpoint, as they lie in memory or in a file that processes of this machine map."""

    checkpoint: str
    num_bytes: int
    laid_out: FileTensor | None = None
    """For the CPU kernels: the image of laid-out weights with its index (gpu/kernels/laid_out), [bytes] uint8."""
    table: FileTensor | None = None
    """For torch: where each tensor is, a gpu.shared_weights.TensorTable in msgpack, [bytes] uint8. It lies in the
    memory that it describes, since large models have more tensors than a frame holds."""
    files: str = ""
    """What `laid_out` was made of: gpu.kernels.laid_out_file.files_digest. A table has a key of its own."""


class WeightsFacts(msgspec.Struct, frozen=True, tag="weights_facts"):
    """What a weights actor shares: nothing of a checkpoint that engines are to load by themselves."""

    shares: list[SharedWeights]


class KvFacts(msgspec.Struct, frozen=True, tag="kv_facts"):
    """What a connector has for one engine's incarnation. Told anew for each of them."""

    kv_epoch: Epoch
    engine_epoch: Epoch
    inbox_address: str
    """Where it hears the engine."""
    window: KvWindow


class StandbyFacts(msgspec.Struct, frozen=True, tag="standby_facts"):
    """A standby learns nothing that others need."""


# ------------------------------------------------------------------ child -> supervisor, over the control pipe


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Sockets are bound, the model is loaded: the actor serves."""

    facts: EngineFacts | RankFacts | OutputFacts | ApiFacts | GrammarFacts | WeightsFacts | StandbyFacts | KvFacts


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """Sent by the child's main task about once a second, from the first moment on."""

    step: int
    phase: str
    """"load", "idle", "step", …"""
    phase_age: float
    """Seconds since the phase began."""
    progress: float = 0.0
    """Of the phase, 0 to 1; 0 where it is not known."""


class Fault(msgspec.Struct, frozen=True, tag="fault"):
    """The child cannot start or go on, and is about to leave: why, in one sentence for the operator."""

    message: str
    lost_rank: int | None = None
    """Which rank of its engine it has waited for in vain, if that is why and is known."""


class GrammarChecked(msgspec.Struct, frozen=True, tag="grammar_checked"):
    """A grammar checker's answer. Exactly one of the two is set."""

    grammar: Grammar | None
    complaint: str | None = None
    """In one line, for the client."""


FromChild = Ready | Heartbeat | Fault | GrammarChecked


# ------------------------------------------------------------------ supervisor -> child, over stdin


class Start(msgspec.Struct, frozen=True, tag="start"):
    """The first frame that a child reads. A standby reads a second one."""

    version: int
    spec: ActorSpec
    name: str | None = None
    """What a standby is called from now on."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Leave in an orderly way. End of file on stdin means the same, in a hurry: the parent is gone."""


class CheckGrammar(msgspec.Struct, frozen=True, tag="check_grammar"):
    """For a grammar checker: build this. The next one is sent after its answer."""

    source: GrammarSource


class Weights(msgspec.Struct, frozen=True, tag="weights"):
    """For an engine and each of its ranks: the weights actor is ready, again if it has been before; None: it is not to
    be waited for."""

    facts: WeightsFacts | None


class KvEngine(msgspec.Struct, frozen=True, tag="kv_engine"):
    """For a connector: its engine is up and is to have a window, or is gone, with all that it had of the connector."""

    epoch: Epoch
    address: str = ""
    """Where the engine hears its connector."""
    layout: KvLayout | None = None
    """None: this incarnation is gone."""


class Kv(msgspec.Struct, frozen=True, tag="kv_is"):
    """For an engine and each of its ranks: its connector is up, or is gone."""

    facts: KvFacts | None


ToChild = Start | Stop | CheckGrammar | Weights | KvEngine | Kv
