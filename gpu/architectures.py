"""What the class name in config.json implies about a model and config.json's other keys do not say: one entry each.

Used by gpu/config. An architecture is served by gpu/models/decoder exactly if it stands here.
"""

from __future__ import annotations

import enum

import attrs


class Windows(enum.Enum):
    """Which layers have config.json's sliding_window, where its layer_types does not say."""

    NONE = enum.auto()
    ALL = enum.auto()
    LISTED = enum.auto()
    """Only layer_types can say it."""
    UPPER = enum.auto()
    """Those from max_window_layers on."""
    PATTERN = enum.auto()
    """All but every n-th one."""


class QkNorm(enum.IntEnum):
    """RMSNorm over queries and keys before the rotation."""

    NONE = 0
    PER_HEAD = 1
    WHOLE = 2
    """Over all heads of a token together."""


@attrs.frozen
class NormNames:
    """A layer's norms: before each block, and after it (on what is added to the residual stream). None is no norm."""

    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None


@attrs.frozen
class ExpertNames:
    """How a mixture of experts is called."""

    block: str
    """The feed-forward block within the layer."""
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    count_keys: tuple[str, ...] = ("num_experts", "num_local_experts")
    """In config.json; the first one that is there counts."""
    size_key: str = "moe_intermediate_size"
    normalised: bool | None = None
    """Whether the chosen experts' weights sum to 1; None: as norm_topk_prob says."""
    shared: bool = False
    """Whether one more expert, behind a gate of its own, sees every token."""
    router: str = "gate"
    """The projection by which a token chooses, within the block."""
    biased: bool = False
    """Whether router and experts have biases."""
    clamped: bool = False
    """Whether gates and what they act on are held to config.json's swiglu_limit, and 1 is added to the latter."""


@attrs.frozen
class Architecture:
    """One family of decoder-only transformers."""

    windows: Windows = Windows.NONE
    window_pattern: int = 0
    window_switch: bool = False
    """Whether windows count only where config.json's use_sliding_window is true."""
    bias_key: str | None = None
    """config.json's key that tells whether the attention's projections have biases; without it, `qkv_bias` holds."""
    qkv_bias: bool = False
    output_bias: bool = False
    """Whether the output projection has a bias where the others have one."""
    mlp_bias: bool = False
    """Whether config.json's mlp_bias has a say."""
    qk_norm: QkNorm = QkNorm.NONE
    head_dim: int | None = None
    """Where config.json does not say; None is hidden_size / num_attention_heads."""
    norms: NormNames = NormNames()
    norm_offset: bool = False
    """The norms' weights are stored less 1, and the norms are computed in float32 throughout."""
    scaled_embedding: bool = False
    """Embeddings are multiplied by the square root of hidden_size."""
    activation: str = "silu"
    activation_key: str | None = "hidden_act"
    sinks: bool = False
    """Whether each head has one more score, learnt, that takes of the softmax and adds nothing to the sum."""
    mxfp4: bool = False
    """Whether quantization_config may say mxfp4: the experts' weights are then made whole as they are read."""
    softcaps: bool = False
    """Whether attn_logit_softcapping bounds the attention's scores."""
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    interleaved_rope: bool = False
    """Rotated pairs are neighbours."""
    partial_rotary_factor: float = 1.0
    """Where config.json does not say."""
    local_rope: bool = False
    """Layers with a window have a rotation of their own, of base rope_local_base_freq."""
    experts: ExpertNames | None = None


_GEMMA = Architecture(
    bias_key="attention_bias",
    output_bias=True,
    head_dim=256,
    norm_offset=True,
    scaled_embedding=True,
    activation="gelu_pytorch_tanh",
    activation_key=None,  # the first Gemma's config.json says "gelu", and means this
)
_GEMMA2 = attrs.evolve(
    _GEMMA,
    norms=NormNames(
        "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
    ),
    activation_key="hidden_activation",
    windows=Windows.PATTERN,
    window_pattern=2,
    softcaps=True,
)
_GLM = Architecture(
    bias_key="attention_bias",
    qkv_bias=True,
    head_dim=128,
    gate_up=("gate_up_proj",),
    interleaved_rope=True,
    partial_rotary_factor=0.5,
)
_QWEN3 = Architecture(
    windows=Windows.UPPER,
    window_switch=True,
    bias_key="attention_bias",
    output_bias=True,
    qk_norm=QkNorm.PER_HEAD,
    head_dim=128,
)

ARCHITECTURES = {
    "LlamaForCausalLM": Architecture(bias_key="attention_bias", output_bias=True, mlp_bias=True),
    "MistralForCausalLM": Architecture(windows=Windows.ALL),
    "MixtralForCausalLM": Architecture(
        windows=Windows.ALL,
        experts=ExpertNames(
            "block_sparse_moe", "w1", "w3", "w2", ("num_local_experts",), "intermediate_size", normalised=True
        ),
    ),
    "Qwen2ForCausalLM": Architecture(windows=Windows.UPPER, window_switch=True, qkv_bias=True),
    "Qwen2MoeForCausalLM": Architecture(
        windows=Windows.LISTED,
        window_switch=True,
        bias_key="qkv_bias",
        qkv_bias=True,
        experts=ExpertNames("mlp", shared=True),
    ),
    "Qwen3ForCausalLM": _QWEN3,
    "Qwen3MoeForCausalLM": attrs.evolve(_QWEN3, windows=Windows.ALL, head_dim=None, experts=ExpertNames("mlp")),
    "GemmaForCausalLM": _GEMMA,
    "Gemma2ForCausalLM": _GEMMA2,
    "Gemma3ForCausalLM": attrs.evolve(
        _GEMMA2, window_pattern=6, softcaps=False, qk_norm=QkNorm.PER_HEAD, local_rope=True
    ),
    "Phi3ForCausalLM": Architecture(windows=Windows.ALL, qkv=("qkv_proj",), gate_up=("gate_up_proj",)),
    "GlmForCausalLM": _GLM,
    "Glm4ForCausalLM": attrs.evolve(
        _GLM,
        norms=NormNames(
            "input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"
        ),
    ),
    "GptOssForCausalLM": Architecture(
        windows=Windows.PATTERN,
        window_pattern=2,
        bias_key="attention_bias",
        qkv_bias=True,
        output_bias=True,
        head_dim=64,
        sinks=True,
        mxfp4=True,
        activation="quick_gelu",
        activation_key=None,  # config.json says "silu", and means this
        experts=ExpertNames(
            "mlp",
            count_keys=("num_local_experts",),
            size_key="intermediate_size",
            normalised=True,
            router="router",
            biased=True,
            clamped=True,
        ),
    ),
    "Olmo2ForCausalLM": Architecture(
        bias_key="attention_bias",
        output_bias=True,
        qk_norm=QkNorm.WHOLE,
        norms=NormNames(None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
    ),
}
