"""`trillm serve`: the server itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import attrs
import trio
from cyclopts import Parameter

from app.commands.ending import status_of
from app.commands.fetch import fetch, shown_already
from app.commands.sources import warn_of_unknown_variables
from app.hosts import Torchrun
from app.logs import is_drawable, set_up_logging
from app.progress import Report, report_in_log
from app.settings import SERVER, Settings
from app.start_screen import Start
from app.startup import Startup
from protocol.errors import BadRequestError

CONFIG = Parameter(group=SERVER, show_default=False)


def serve(
    model: str | None = None,
    *,
    config: Annotated[Path | None, CONFIG] = None,
    settings: Annotated[Settings | None, Parameter(name="*")] = None,
) -> int:
    """Serve a model over the OpenAI HTTP API until SIGTERM or Ctrl-C.

    MODEL is a GGUF file, a Hugging Face model directory, or a model's name on the Hub; without one it is the embedded
    default, SmolLM2-135M-Instruct.

        trillm serve
        trillm serve Qwen/Qwen3-0.6B --port 8080 --max-model-len 16k
        trillm serve ./model.gguf --host 0.0.0.0 --api-key "$KEY"
        trillm serve MODEL --config trillm.toml

    A flag can also be an environment variable (--max-model-len is TRILLM_MAX_MODEL_LEN) or a key of the --config file
    (max_model_len). Flags go before variables, and those before the file.

    Exit status: 0 after a signal, 1 if it could not start or go on, 2 for a flag that does not exist or a value that
    it cannot have.

    Parameters
    ----------
    config
        A TOML file with settings: port = 8080. Default: the one that TRILLM_CONFIG names.
    """
    if model in ("true", "false"):
        raise BadRequestError(f"{model} is no model: a switch is on by its name alone, and off as --no-NAME")
    chosen = settings or Settings()
    if chosen.nnodes == 1 and (told := Torchrun.of(os.environ)) is not None:
        chosen = attrs.evolve(
            chosen, nnodes=told.nnodes, node_rank=told.node_rank, master_addr=chosen.master_addr or told.master_addr
        )
    set_up_logging(chosen.log_level, chosen.log_format)
    warn_of_unknown_variables()
    status = 0
    try:
        status = status_of(lambda: start_serving(model, chosen))
    except* KeyboardInterrupt:  # before app/launch.py handles signals there is nothing to finish
        pass
    return status


def start_serving(model: str | None, settings: Settings) -> int:
    """The exit status, in the end. Raises TrillmError and OSError for what ends the start."""
    with open_start(settings) as (start, shown):
        from app.launch import serve as serve_forever
        from app.notify import take_variables

        manager = take_variables(os.environ)
        checkpoint = fetch(model, settings, start.startup, shown)
        return trio.run(serve_forever, settings, checkpoint, manager, start)


@contextmanager
def open_start(settings: Settings) -> Iterator[tuple[Start, Report | None]]:
    """Who tells of the start, and shows what is fetched if that is not as everywhere."""
    startup = Startup()
    if settings.log_format == "json" or not is_drawable(sys.stderr, os.environ):
        yield Start(startup), report_in_log()
        return
    if settings.node_rank > 0:  # nobody takes requests here, in the end
        yield Start(startup), None
        return
    from app.live_screen import open_live_screen

    with open_live_screen(startup) as screen:
        yield Start(startup, screen), shown_already
