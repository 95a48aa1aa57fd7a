"""What the scheduler is given when it is made; the engine's main takes it from its spec and the runner's facts."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from actors.engine.waiting import POLICIES


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Sizes in tokens and blocks. Raises ValueError for sizes below 1 and for an unknown policy."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    policy: str = "fcfs"
    """"fcfs" or "priority"."""
    long_prefill_token_threshold: int = 0
    """Most tokens of one prompt in a step; 0 is no limit but the step's own."""
    enable_prefix_caching: bool = True
    """Whether sequences with the same beginning share its blocks, while it is in memory."""
    vocab_size: int = 2**31
    """Token ids are below this."""
    max_loras: int = 0
    """Adapters that the runner holds at once."""
    jumps_ahead: bool = True
    """Whether several tokens that a grammar foresees are computed in one step."""
    kv_seconds: float = 5.0
    """How long a sequence waits for its engine's connector."""
    max_num_loads: int = 64
    """Blocks that one step loads from there."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            least = 0 if name in ("long_prefill_token_threshold", "max_loras") else 1
            if isinstance(value, int) and not isinstance(value, bool) and value < least:
                raise ValueError(f"{name} must be at least {least}, not {value}")
        if self.policy not in POLICIES:
            raise ValueError(f"policy must be one of {', '.join(POLICIES)}, not {self.policy!r}")
