"""Results of comparisons that never took place, for the tests of tables and plots."""

from __future__ import annotations

from scripts.benchmark.compare.results import (
    BesidePrompts,
    Conditions,
    Level,
    Machine,
    ModelResults,
    PlanRecord,
    Results,
    ServerResults,
    Turn,
)

CONCURRENCY = [1, 2, 4, 8, 16]


def a_level(concurrency: int, rate: float, *, failures: int = 0, others: float = 0.0) -> Level:
    """Of a server that puts out `rate` tokens in a second."""
    requests = max(4, 2 * concurrency)
    answered = requests - failures
    tokens = 64 * answered
    ttft = [128 / rate * (1 + place % concurrency) for place in range(answered)]
    return Level(
        concurrency=concurrency,
        requests=requests,
        failures=failures,
        failure="the stream broke off after 3 events" if failures else "",
        seconds=tokens / rate,
        output_tokens=tokens,
        ttft=ttft,
        e2e=[first + 64 * concurrency / rate for first in ttft],
        texts=tokens,
        itl_p50=concurrency / rate,
        itl_p95=2 * concurrency / rate,
        itl_p99=3 * concurrency / rate,
        itl_max=4 * concurrency / rate,
        cpu_seconds=1.8 * tokens / rate,
        client_share=0.02,
        others_share=others,
    )


def a_turn(round_: int, rate: float, *, start: float, memory: int, concurrency: list[int] = CONCURRENCY) -> Turn:
    """Each round is a little faster than the one before."""
    rate *= 1 + 0.06 * (round_ - 2)
    return Turn(
        round=round_,
        seconds=60.0,
        ready_seconds=start * (1 - 0.05 * round_),
        first_request_seconds=30 / rate,
        memory_idle=memory,
        memory_load=memory + 300_000_000,
        ttft_long=1024 / (8 * rate),
        ttft_again=0.03,
        levels=[a_level(n, rate * (1 + 1.4 * (n - 1) / (n + 3))) for n in concurrency],
        beside=BesidePrompts(8, 4, 1500, 0.02, 5 / rate, [1.0, 2.0, 3.0, 4.0]),
    )


def a_server(name: str, rate: float, *, start: float, memory: int, weights: str, rounds: int = 3) -> ServerResults:
    turns = [a_turn(round_, rate, start=start, memory=memory) for round_ in range(1, rounds + 1)]
    command = [name, "serve", "--port", "{port}"]
    return ServerResults(
        name, "1.2.3", weights, command, {}, turns, cold_start_seconds=2.4 * start, first_start_seconds=5 * start
    )


def a_comparison() -> Results:
    """Of three servers, on a machine that was quiet."""
    servers = [
        a_server("trillm", 150.0, start=2.3, memory=500_000_000, weights="Small.Q4_1.gguf"),
        a_server("llama.cpp", 75.0, start=0.9, memory=1_100_000_000, weights="Small.Q4_1.gguf"),
        a_server("vLLM", 25.0, start=29.0, memory=4_600_000_000, weights="the same weights in float32"),
    ]
    return Results(
        command_line=["scripts/bench"],
        machine=Machine("A Processor", ["avx2"], 2, 24 << 30, "Linux 6.1.0, Python 3.11.2"),
        conditions=Conditions(
            "2026-11-30 12:00:00 +0000", "2026-11-30 12:14:00 +0000", 0.1, 1.8, 2596.0, 2600.0, "", 0.0
        ),
        plan=PlanRecord(CONCURRENCY, 3, 128, 64, 1024, 4, 15.0),
        models=[ModelResults("Small-135M", servers)],
    )
