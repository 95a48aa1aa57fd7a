"""What `trillm bench` tells: a block as `vllm bench serve` has it, and a file with its names. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from app.api_client.call_error import plain
from app.commands.bench_call import Outcome
from app.commands.bench_figures import Figures
from app.commands.bench_load import Load
from app.commands.bench_plan import LoadFlags, ResultFlags

WIDTH = 50
TITLES = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
}
MOST_REASONS = 5
BUSY_CLIENT = 0.8
"""Of a core: above, the client may be what is measured."""


def block(figures: Figures, load: LoadFlags, results: ResultFlags) -> str:
    rows: list[tuple[str, float | int]] = [
        ("Successful requests:", figures.completed),
        ("Failed requests:", figures.failed),
    ]
    if load.max_concurrency is not None:
        rows.append(("Maximum request concurrency:", load.max_concurrency))
    if math.isfinite(load.request_rate):
        rows.append(("Request rate configured (RPS):", load.request_rate))
    rows += [
        ("Benchmark duration (s):", figures.seconds),
        ("Total input tokens:", figures.total_input),
        ("Total generated tokens:", figures.total_output),
        ("Request throughput (req/s):", figures.request_throughput),
    ]
    if results.service_levels:
        rows.append(("Request goodput (req/s):", figures.request_goodput))
    rows += [
        ("Output token throughput (tok/s):", figures.output_throughput),
        ("Peak output token throughput (tok/s):", figures.max_output_tokens_per_s),
        ("Peak concurrent requests:", figures.max_concurrent_requests),
        ("Total token throughput (tok/s):", figures.total_token_throughput),
    ]
    lines = [f"{' Serving Benchmark Result ':=^{WIDTH}}", *(_row(*row) for row in rows)]
    for metric in results.metrics:
        short, title = TITLES[metric]
        spread = figures.spreads[metric]
        lines.append(f"{title:-^{WIDTH}}")
        lines += [_row(f"Mean {short} (ms):", spread.mean), _row(f"Median {short} (ms):", spread.median)]
        lines += [_row(f"P{percent:g} {short} (ms):", value) for percent, value in spread.percentiles.items()]
    return "\n".join([*lines, "=" * WIDTH])


def remarks(figures: Figures, load: Load, num_prompts: int) -> list[str]:
    """What a reader of the block has to know besides, in sentences."""
    told = []
    if len(load.outcomes) < num_prompts:
        told.append(f"stopped: {len(load.outcomes)} of {num_prompts} requests had ended, and are what is told")
    reasons = Counter(outcome.error for outcome in load.outcomes if outcome.error)
    told += [f"failed {number} x: {plain(reason)}" for reason, number in reasons.most_common(MOST_REASONS)]
    if len(reasons) > MOST_REASONS:
        told.append(f"and {len(reasons) - MOST_REASONS} other reasons")
    if figures.counts_events:
        told.append("the server told no usage: output tokens are events with text, and input tokens are not counted")
    if figures.completed and load.cpu_seconds / figures.seconds > BUSY_CLIENT:
        told.append(
            f"this client took {load.cpu_seconds / figures.seconds:.0%} of a core: it may be what was measured; "
            "lower --max-concurrency or --request-rate, or run several"
        )
    return told


def result(
    figures: Figures,
    load: Load,
    flags: LoadFlags,
    results: ResultFlags,
    *,
    model: str,
    date: str,
) -> dict[str, object]:
    """As JSON, with vLLM's names; `client_cpu_seconds` is ours."""
    backend = "openai-chat" if flags.is_chat else "openai"
    told: dict[str, object] = {
        "date": date,
        "endpoint_type": backend,
        "backend": backend,
        "label": results.label or backend,
        "model_id": model,
        "tokenizer_id": None,
        "num_prompts": flags.num_prompts,
        **results.notes,
        "request_rate": flags.request_rate if math.isfinite(flags.request_rate) else "inf",
        "burstiness": flags.burstiness,
        "max_concurrency": flags.max_concurrency,
        "duration": figures.seconds,
        "completed": figures.completed,
        "failed": figures.failed,
        "total_input_tokens": figures.total_input,
        "total_output_tokens": figures.total_output,
        "request_throughput": figures.request_throughput,
        "request_goodput": figures.request_goodput if results.service_levels else None,
        "output_throughput": figures.output_throughput,
        "total_token_throughput": figures.total_token_throughput,
        "max_output_tokens_per_s": figures.max_output_tokens_per_s,
        "max_concurrent_requests": figures.max_concurrent_requests,
        "client_cpu_seconds": load.cpu_seconds,
    }
    for metric in results.metrics:
        spread = figures.spreads[metric]
        told |= {f"mean_{metric}_ms": spread.mean, f"median_{metric}_ms": spread.median, f"std_{metric}_ms": spread.std}
        told |= {f"p{percent:g}_{metric}_ms": value for percent, value in spread.percentiles.items()}
    return told | (_details(load.outcomes) if results.save_detailed else {})


def file_name(flags: LoadFlags, results: ResultFlags, model: str, date: str) -> str:
    """As vLLM makes it, of label, rate, concurrency, model and date."""
    label = results.label or ("openai-chat" if flags.is_chat else "openai")
    rate = f"{flags.request_rate:g}" if math.isfinite(flags.request_rate) else "inf"
    at_once = "" if flags.max_concurrency is None else f"-concurrency{flags.max_concurrency}"
    name = f"{label}-{rate}qps{at_once}-{model.rpartition('/')[2]}-{date}.json"
    return "".join("_" if c in "/\\\0" or not c.isprintable() else c for c in name)


def _details(outcomes: Sequence[Outcome]) -> dict[str, object]:
    return {
        "input_lens": [outcome.num_prompt_tokens for outcome in outcomes],
        "output_lens": [0 if outcome.error else outcome.num_output_tokens for outcome in outcomes],
        "start_times": [outcome.began for outcome in outcomes],
        "ttfts": [outcome.ttft for outcome in outcomes],
        "itls": [outcome.gaps for outcome in outcomes],
        "latencies": [outcome.latency for outcome in outcomes],
        "queue_times": [max(outcome.began - outcome.planned_at, 0.0) for outcome in outcomes],
        "generated_texts": [outcome.text for outcome in outcomes],
        "errors": [outcome.error for outcome in outcomes],
    }


def _row(label: str, value: float | int) -> str:
    return f"{label:<40} {value}" if isinstance(value, int) else f"{label:<40} {value:.2f}"
