"""`trillm bench`: put a load on a running server, and tell how it bears it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import trio
from cyclopts import Parameter

from app.commands.bench_plan import LoadFlags, PromptFlags, ResultFlags
from app.commands.ending import status_of, tell
from app.commands.interruption import STATUS, unless_interrupted
from app.commands.sampling_flags import SamplingFlags
from app.commands.server_flags import ServerFlags
from app.counted import counted
from protocol.log_lines import safe

if TYPE_CHECKING:
    from app.api_client.place import Place
    from app.commands.bench_figures import Figures
    from app.commands.bench_load import Load

Show = Callable[["Load"], None]
SHOWN_SECONDS = 0.25
"""Between two looks at how far it is."""


def bench(
    kind: Annotated[Literal["serve"], Parameter(show=False)] = "serve",
    /,
    *,
    load: Annotated[LoadFlags | None, Parameter(name="*")] = None,
    prompts: Annotated[PromptFlags | None, Parameter(name="*")] = None,
    server: Annotated[ServerFlags | None, Parameter(name="*")] = None,
    sampling: Annotated[SamplingFlags | None, Parameter(name="*")] = None,
    results: Annotated[ResultFlags | None, Parameter(name="*")] = None,
) -> int:
    """Put a load on a running server and tell how it bears it.

    Flags, figures and the file's names are those of `vllm bench serve`, and any server with the OpenAI API will do.
    Tokens are counted by the server (`usage`), so no tokeniser is needed here. Ctrl-C stops it and tells what was
    measured so far. (scripts/bench in the repository starts servers and compares them; this asks one that runs.)

        trillm bench
        trillm bench --max-concurrency 8 --num-prompts 200 --ignore-eos
        trillm bench --request-rate 4 --goodput ttft:500 tpot:100 --save-result
        trillm bench --backend openai-chat --dataset-name sharegpt --dataset-path ShareGPT.json

    Exit status: 0 if every request was answered, 1 if not, 2 for a wrong flag, 130 after Ctrl-C.
    """
    flags = load or LoadFlags(), prompts or PromptFlags(), results or ResultFlags()
    for chosen in flags:
        chosen.check()
    place = (server or ServerFlags()).place()
    fields = (sampling or SamplingFlags()).fields()
    return status_of(lambda: trio.run(_bench, *flags, place, fields))


async def _bench(
    flags: LoadFlags, prompt_flags: PromptFlags, results: ResultFlags, place: Place, sampling: dict[str, float | int]
) -> int:
    from app.api_client.client import ApiClient
    from app.commands.bench_call import Form
    from app.commands.bench_figures import figures_of
    from app.commands.bench_load import Load, find_server, find_vocabulary, run_load, warm_up
    from app.commands.bench_prompts import arrivals, make_prompts
    from app.commands.bench_report import block, remarks
    from app.descriptors import raise_descriptor_limit

    raise_descriptor_limit()
    if results.saves:
        results.directory.mkdir(parents=True, exist_ok=True)  # before, as it would be a pity after
    done = Load()
    model = ""

    async def run() -> None:
        nonlocal model
        async with ApiClient(place, stream_seconds=flags.request_timeout) as client:
            model = await find_server(client, flags.model, flags.ready_check_timeout_sec)
            vocabulary = await find_vocabulary(client, model, takes_ids=not flags.is_chat)
            prompts = make_prompts(prompt_flags, flags.num_prompts, vocabulary)
            fields = {**sampling, **({"ignore_eos": True} if flags.ignore_eos else {}), **flags.extra_fields}
            form = Form(flags.path, model, flags.is_chat, fields, flags.request_timeout)
            times = arrivals(flags.num_prompts, flags.request_rate, flags.burstiness, prompt_flags.seed)
            _say(f"{counted(flags.num_prompts, 'request')} to {model} at {place}{flags.path}")
            await warm_up(client, form, (prompts * flags.num_warmups)[: flags.num_warmups])
            with _open_progress(flags.num_prompts, is_shown=not results.disable_tqdm) as show:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_show, show, done)
                    await run_load(client, form, prompts, times, flags.max_concurrency, done)
                    nursery.cancel_scope.cancel()

    was_over = await unless_interrupted(run)
    if not done.outcomes:
        _say("trillm: stopped before a request had ended")
        return STATUS
    figures = figures_of(done.outcomes, done.seconds, results.percentiles, results.service_levels)
    unwritten = tell(block(figures, flags, results))
    for remark in remarks(figures, done, flags.num_prompts):
        _say(remark)
    if results.saves:
        _save(figures, done, flags, results, model)
    return STATUS if not was_over else unwritten or int(figures.failed > 0)


async def _show(show: Show, load: Load) -> None:
    while True:
        show(load)
        await trio.sleep(SHOWN_SECONDS)


@contextmanager
def _open_progress(num_prompts: int, *, is_shown: bool) -> Iterator[Show]:
    """On a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not is_shown or not console.is_terminal or console.is_dumb_terminal:
        yield lambda _: None
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as progress:
        task = progress.add_task("", total=num_prompts)
        began = trio.current_time()

        def show(load: Load) -> None:
            rate = load.num_tokens / max(trio.current_time() - began, SHOWN_SECONDS)
            failed = f", {load.num_failed} failed" if load.num_failed else ""
            told = f"{len(load.running)} running{failed}, {rate:.0f} tokens/s"
            progress.update(task, completed=len(load.outcomes), description=told, refresh=True)

        yield show


def _save(figures: Figures, load: Load, flags: LoadFlags, results: ResultFlags, model: str) -> None:
    from app.commands.bench_report import file_name, result

    date = datetime.now().strftime("%Y%m%d-%H%M%S")
    path = results.directory / (results.result_filename or file_name(flags, results, model, date))
    told = result(figures, load, flags, results, model=model, date=date)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(told)) + b"\n")
    _say(f"saved in {path}")


def _say(text: str) -> None:
    """Beside the figures, which may go into a file. Nobody who does not read it keeps us from measuring and saving."""
    with suppress(OSError):
        print(safe(text), file=sys.stderr)  # noqa: T201
