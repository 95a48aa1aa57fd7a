"""What `trillm bench` is asked to do: its flags, with vLLM's names, held to what can be done. Pure."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

import attrs
import msgspec
from cyclopts import Group, Parameter

from protocol.errors import BadRequestError

LOAD = Group("Load", sort_key=0)
PROMPTS = Group("Prompts", sort_key=1)
RESULTS = Group("Results", sort_key=4)

METRICS = ("ttft", "tpot", "itl", "e2el")
SERVICE_LEVELS = ("ttft", "tpot", "e2el")
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MOST_PROMPTS = 1_000_000
MOST_TOKENS = 1 << 20
"""Of one prompt, and of one answer."""


@attrs.frozen(kw_only=True)
class LoadFlags:
    backend: Annotated[Literal["openai", "vllm", "openai-chat"], Parameter(group=LOAD)] = "openai"
    """openai (or vllm, which is the same) asks for completions, openai-chat for chat completions."""
    endpoint: Annotated[str | None, Parameter(group=LOAD, show_default=False)] = None
    """The path that is asked. Default: the backend's, /v1/completions or /v1/chat/completions."""
    model: Annotated[str | None, Parameter(name=("--model", "--served-model-name"), group=LOAD, show_default=False)] = (
        None
    )
    """Which of the server's models. Default: its first."""
    num_prompts: Annotated[int, Parameter(group=LOAD)] = 100
    """Requests (vLLM's default is 1000)."""
    request_rate: Annotated[float, Parameter(group=LOAD)] = math.inf
    """Requests per second; inf sends all at once."""
    burstiness: Annotated[float, Parameter(group=LOAD)] = 1.0
    """Of a finite rate: 1 is a Poisson process, less comes in bursts, more is regular."""
    max_concurrency: Annotated[int | None, Parameter(group=LOAD, show_default=False)] = None
    """Requests under way at a time, at most. Default: no bound."""
    num_warmups: Annotated[int, Parameter(group=LOAD)] = 1
    """Requests before, one after another, that are not counted."""
    ignore_eos: Annotated[bool, Parameter(group=LOAD, negative=(), show_default=False)] = False
    """Every answer has as many tokens as are asked for (trillm, vLLM, SGLang)."""
    extra_body: Annotated[str | None, Parameter(group=LOAD, show_default=False)] = None
    """Further fields of each request, as JSON."""
    request_timeout: Annotated[float, Parameter(group=LOAD)] = 600.0
    """Seconds after which a request is given up as failed."""
    ready_check_timeout_sec: Annotated[float, Parameter(group=LOAD)] = 0.0
    """Seconds to wait for the server to come up."""

    @property
    def path(self) -> str:
        return self.endpoint or (CHAT if self.backend == "openai-chat" else COMPLETIONS)

    @property
    def is_chat(self) -> bool:
        return self.path.endswith("/chat/completions")

    @property
    def extra_fields(self) -> dict[str, object]:
        """Raises BadRequestError for what is no JSON object."""
        try:
            return msgspec.json.decode(self.extra_body, type=dict[str, object]) if self.extra_body else {}
        except msgspec.DecodeError as error:
            raise BadRequestError(f"--extra-body must be a JSON object: {error}") from error

    def check(self) -> None:
        """Raises BadRequestError that names flag, value and what would do."""
        _between("--num-prompts", self.num_prompts, 1, MOST_PROMPTS)
        _between("--num-warmups", self.num_warmups, 0, MOST_PROMPTS)
        _between("--max-concurrency", self.max_concurrency, 1, MOST_PROMPTS)
        _above_zero("--request-rate", self.request_rate)
        _above_zero("--burstiness", self.burstiness)
        _above_zero("--request-timeout", self.request_timeout)
        _between("--ready-check-timeout-sec", self.ready_check_timeout_sec, 0, 86400)
        if not self.path.startswith("/") or not self.path.isascii() or not self.path.isprintable() or " " in self.path:
            raise BadRequestError(f"--endpoint must be a path as {COMPLETIONS}, not {self.path[:100]!r}")
        _ = self.extra_fields


@attrs.frozen(kw_only=True)
class PromptFlags:
    dataset_name: Annotated[Literal["random", "sharegpt", "custom"], Parameter(group=PROMPTS)] = "random"
    """random makes prompts up; sharegpt and custom read them from a file."""
    dataset_path: Annotated[Path | None, Parameter(group=PROMPTS, show_default=False)] = None
    """ShareGPT's JSON, or for custom a line of JSON for each prompt: {"prompt": "Why?", "output_tokens": 50}."""
    random_input_len: Annotated[int, Parameter(name=("--random-input-len", "--input-len"), group=PROMPTS)] = 256
    """Tokens of a made-up prompt (vLLM's default is 1024)."""
    random_output_len: Annotated[int, Parameter(name=("--random-output-len", "--output-len"), group=PROMPTS)] = 128
    """Tokens that are asked for with it."""
    random_range_ratio: Annotated[str, Parameter(group=PROMPTS)] = "0"
    """How far both lengths vary, from 0 to 1, or each of its own: '{"input": 0.3, "output": 0.5}'."""
    random_prefix_len: Annotated[int, Parameter(group=PROMPTS)] = 0
    """Tokens before them that are the same in all."""
    sharegpt_output_len: Annotated[int | None, Parameter(group=PROMPTS, show_default=False)] = None
    """Tokens that are asked for. Default: about as many as the answer in the file has."""
    custom_output_len: Annotated[int, Parameter(group=PROMPTS)] = 256
    """Tokens that are asked for; -1 takes output_tokens of the file."""
    disable_shuffle: Annotated[bool, Parameter(group=PROMPTS, negative=(), show_default=False)] = False
    """Prompts of a file in its own order."""
    seed: Annotated[int, Parameter(group=PROMPTS)] = 0
    """Of prompts and arrivals; the same one gives the same ones."""

    @property
    def range_ratios(self) -> tuple[float, float]:
        """Of input and output. Raises BadRequestError."""
        try:
            said = msgspec.json.decode(self.random_range_ratio, type=float | dict[str, float])
        except msgspec.DecodeError:
            said = -1.0
        pair = (said, said) if isinstance(said, float) else (said.get("input", 0.0), said.get("output", 0.0))
        if not all(0 <= ratio < 1 for ratio in pair):
            form = 'a number from 0 to 1, or {"input": 0.3, "output": 0.5}'
            raise BadRequestError(f"--random-range-ratio must be {form}, not {self.random_range_ratio[:100]!r}")
        return pair

    def check(self) -> None:
        """Raises BadRequestError that names flag, value and what would do."""
        _between("--random-input-len", self.random_input_len, 1, MOST_TOKENS)
        _between("--random-output-len", self.random_output_len, 1, MOST_TOKENS)
        _between("--random-prefix-len", self.random_prefix_len, 0, MOST_TOKENS)
        _between("--sharegpt-output-len", self.sharegpt_output_len, 1, MOST_TOKENS)
        if self.custom_output_len != -1:
            _between("--custom-output-len", self.custom_output_len, 1, MOST_TOKENS)
        _ = self.range_ratios
        if self.dataset_name != "random" and self.dataset_path is None:
            raise BadRequestError(f"--dataset-name {self.dataset_name} needs --dataset-path, the file with its prompts")


@attrs.frozen(kw_only=True)
class ResultFlags:
    percentile_metrics: Annotated[str, Parameter(group=RESULTS)] = "ttft,tpot,itl"
    """Which of ttft, tpot, itl and e2el are told."""
    metric_percentiles: Annotated[str, Parameter(group=RESULTS)] = "99"
    """Which percentiles of them, as 50,90,99."""
    goodput: Annotated[
        tuple[str, ...], Parameter(group=RESULTS, consume_multiple=True, negative=(), show_default=False)
    ] = ()
    """What a request must keep to to count as good, in ms: ttft:200 tpot:50 e2el:3000."""
    save_result: Annotated[bool, Parameter(group=RESULTS, negative=(), show_default=False)] = False
    """Write a JSON file with vLLM's names."""
    save_detailed: Annotated[bool, Parameter(group=RESULTS, negative=(), show_default=False)] = False
    """With each request's times, text and error in it."""
    result_dir: Annotated[Path | None, Parameter(group=RESULTS, show_default=False)] = None
    """Where it is written. Default: the current directory."""
    result_filename: Annotated[str | None, Parameter(group=RESULTS, show_default=False)] = None
    """Its name. Default: of label, rate, concurrency, model and date."""
    label: Annotated[str | None, Parameter(group=RESULTS, show_default=False)] = None
    """Of this run. Default: the backend."""
    metadata: Annotated[
        tuple[str, ...], Parameter(group=RESULTS, consume_multiple=True, negative=(), show_default=False)
    ] = ()
    """What else the file is to say: KEY=VALUE."""
    disable_tqdm: Annotated[
        bool, Parameter(name=("--disable-tqdm", "--no-progress"), group=RESULTS, negative=(), show_default=False)
    ] = False
    """No progress bar."""

    @property
    def saves(self) -> bool:
        return self.save_result or self.save_detailed

    @property
    def directory(self) -> Path:
        return self.result_dir or Path()

    @property
    def metrics(self) -> tuple[str, ...]:
        """Raises BadRequestError."""
        named = tuple(name.strip() for name in self.percentile_metrics.split(",") if name.strip())
        for name in named:
            if name not in METRICS:
                raise BadRequestError(f"--percentile-metrics has {', '.join(METRICS)}, and no {name[:60]!r}")
        return named

    @property
    def percentiles(self) -> tuple[float, ...]:
        """Raises BadRequestError."""
        try:
            found = tuple(float(text) for text in self.metric_percentiles.split(","))
        except ValueError:
            found = (math.nan,)
        if not all(0 <= share <= 100 for share in found):
            said = self.metric_percentiles[:60]
            raise BadRequestError(f"--metric-percentiles must be numbers from 0 to 100, as 50,90,99, not {said!r}")
        return found

    @property
    def service_levels(self) -> dict[str, float]:
        """Milliseconds by metric. Raises BadRequestError."""
        found = {}
        for pair in self.goodput:
            name, _, text = pair.partition(":")
            if name not in SERVICE_LEVELS or not text.replace(".", "", 1).isdecimal():
                raise BadRequestError(f"--goodput must be as ttft:200 tpot:50 e2el:3000, and {pair[:60]!r} is not")
            found[name] = float(text)
        return found

    @property
    def notes(self) -> dict[str, str]:
        """Raises BadRequestError."""
        found = {}
        for pair in self.metadata:
            name, equals, value = pair.partition("=")
            if not equals:
                raise BadRequestError(f"--metadata must be KEY=VALUE, and {pair[:60]!r} is not")
            found[name.strip()] = value.strip()
        return found

    def check(self) -> None:
        """Raises BadRequestError that names flag, value and what would do."""
        _ = self.metrics, self.percentiles, self.service_levels, self.notes


def _between(flag: str, value: float | None, least: float, most: float) -> None:
    if value is not None and not least <= value <= most:
        raise BadRequestError(f"{flag} must be from {least} to {most}, not {value:g}")


def _above_zero(flag: str, value: float) -> None:
    if not value > 0:
        raise BadRequestError(f"{flag} must be above 0, not {value:g}")
