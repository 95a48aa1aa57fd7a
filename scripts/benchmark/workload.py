"""What is asked of a server in one round, and the figures that come of it.

Every prompt is new to the server unless the figure is about prefix caching. Outputs have a fixed length, greedy.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

import attrs

from scripts.benchmark.client import Call, Client
from scripts.benchmark.event_stream import UnexpectedAnswerError
from scripts.benchmark.processes import RunningServer
from scripts.benchmark.prompts import Prompts
from scripts.benchmark.statistics import percentile

PROMPT_TOKENS = 128
LONG_PROMPT_TOKENS = 1024
ARRIVING_PROMPT_TOKENS = 1500
STREAMS_BESIDE_PROMPTS = 8
TTFT_REPEATS = 3
CALL_SECONDS = 600.0
"""After this a server that does not answer ends the benchmark."""


@attrs.frozen
class Figure:
    """What one measured number is."""

    title: str
    unit: str
    more_is_better: bool


def figures(streams: Sequence[int]) -> dict[str, Figure]:
    """Every figure that a round gives, in the order in which a table shows them."""
    return {
        "decode": Figure("decode, one stream", "tok/s", True),
        **{f"output_{n}": Figure(f"output, {n} stream{'s' * (n > 1)}", "tok/s", True) for n in streams},
        "ttft_short": Figure(f"first token, {PROMPT_TOKENS} tokens", "ms", False),
        "ttft_long": Figure(f"first token, {LONG_PROMPT_TOKENS} tokens", "ms", False),
        "ttft_again": Figure(f"first token, the same {LONG_PROMPT_TOKENS} again", "ms", False),
        "gap_p50": Figure("between tokens, 16 streams, p50", "ms", False),
        "gap_p99": Figure("between tokens, 16 streams, p99", "ms", False),
        "gap_p99_beside": Figure(
            f"{STREAMS_BESIDE_PROMPTS} streams, a {ARRIVING_PROMPT_TOKENS}-token prompt each second, p99", "ms", False
        ),
        "ttft_beside": Figure("… and the first token of these prompts", "ms", False),
        "cpu_per_token": Figure("CPU per output token, 16 streams", "ms", False),
        "ready": Figure("start to ready", "s", False),
        "memory_idle": Figure("memory (PSS), ready", "MB", False),
        "memory": Figure("memory (PSS), after the load", "MB", False),
    }


@attrs.define
class Round:
    """One server's turn."""

    running: RunningServer
    prompts: Prompts
    output_tokens: int
    arrivals: int
    """How many long prompts arrive beside the streams, one each second."""
    client_share: float = 0.0
    """The most of one core that the client took while it drove streams."""

    def measure(self, streams: Sequence[int]) -> dict[str, float]:
        """Raises UnexpectedAnswerError if the server refuses, breaks off, or stops early."""
        found = {"ready": self.running.ready_seconds, "memory_idle": self.running.memory_bytes() / 1e6}
        self._run([self._call(16, 8)])  # whatever a server does on its first request is not what is measured
        short = [self._run([self._call(PROMPT_TOKENS, 1)])[0] for _ in range(TTFT_REPEATS)]
        found["ttft_short"] = 1e3 * median(call.first_token_seconds for call in short)
        found |= self._prefix()
        for n in streams:
            found |= self._streams(n)
        found |= self._beside_prompts()
        found["memory"] = self.running.memory_bytes() / 1e6
        return found

    def _prefix(self) -> dict[str, float]:
        first = self._call(LONG_PROMPT_TOKENS, 1)
        again = attrs.evolve(first, events=[])
        self._run([first])
        self._run([again])
        return {"ttft_long": 1e3 * first.first_token_seconds, "ttft_again": 1e3 * again.first_token_seconds}

    def _streams(self, n: int) -> dict[str, float]:
        calls = [self._call(PROMPT_TOKENS, self.output_tokens) for _ in range(n)]
        cpu, began = self.running.cpu_seconds(), time.perf_counter()
        self._run(calls)
        seconds, cpu = time.perf_counter() - began, self.running.cpu_seconds() - cpu
        num_tokens = sum(call.num_tokens for call in calls)
        found = {f"output_{n}": num_tokens / seconds}
        if n == 1:
            times = calls[0].text_times
            found["decode"] = (calls[0].num_tokens - 1) / (times[-1] - times[0])
        if n == 16:
            gaps = [gap for call in calls for gap in call.gaps()]
            found |= {"gap_p50": 1e3 * percentile(gaps, 0.5), "gap_p99": 1e3 * percentile(gaps, 0.99)}
            found["cpu_per_token"] = 1e3 * cpu / num_tokens
        return found

    def _beside_prompts(self) -> dict[str, float]:
        """Streams that run on, long enough for the window to end before they do, while long prompts arrive."""
        client = Client()
        try:
            streams = [self._call(PROMPT_TOKENS, 1500) for _ in range(STREAMS_BESIDE_PROMPTS)]
            for call in streams:
                client.start(call)
            if not client.run(lambda: all(len(call.events) > 1 for call in streams), CALL_SECONDS):
                raise UnexpectedAnswerError("the streams did not begin")
            began = time.perf_counter()
            arriving = []
            for _ in range(self.arrivals):
                arriving.append(self._call(ARRIVING_PROMPT_TOKENS, 1))
                client.start(arriving[-1])
                client.run(lambda: False, 1.0)
            client.run(lambda: all(call.ended_at for call in arriving), CALL_SECONDS)
            ended = time.perf_counter()
        finally:
            client.close()
        gaps = [gap for call in streams for gap in call.gaps(since=began)]
        # A stream that has come to a standstill counts too.
        gaps += [ended - call.text_times[-1] for call in streams if call.ended_at is None]
        answered = [call.first_token_seconds for call in arriving if call.ended_at]
        return {
            "gap_p99_beside": 1e3 * percentile(gaps, 0.99),
            "ttft_beside": 1e3 * (median(answered) if answered else CALL_SECONDS),
        }

    def _call(self, num_prompt_tokens: int, max_tokens: int) -> Call:
        server = self.running
        return Call(server.address, server.server.model, self.prompts.make(num_prompt_tokens), max_tokens)

    def _run(self, calls: Sequence[Call]) -> Sequence[Call]:
        client = Client()
        cpu, began = time.process_time(), time.perf_counter()
        try:
            for call in calls:
                client.start(call)
            client.finish(CALL_SECONDS)
        finally:
            client.close()
        self.client_share = max(self.client_share, (time.process_time() - cpu) / max(time.perf_counter() - began, 0.5))
        return calls
