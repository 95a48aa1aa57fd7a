"""`trillm serve`: the server itself."""

from __future__ import annotations

import os
from typing import Annotated

import attrs
import trio
from cyclopts import Parameter

from app.commands.ending import status_of
from app.commands.fetch import fetch
from app.commands.sources import warn_of_unknown_variables
from app.hosts import Torchrun
from app.logs import set_up_logging
from app.settings import Settings


def serve(model: str | None = None, *, settings: Annotated[Settings | None, Parameter(name="*")] = None) -> int:
    """Serve MODEL until SIGTERM or Ctrl-C.

    MODEL is a GGUF file, a Hugging Face model directory, or a model's name on the Hub; without one it is the embedded
    default, SmolLM2-135M-Instruct. Each flag can also be set by the environment variable that is shown with it, or in
    a TOML file that TRILLM_CONFIG names.

    Exit status: 0 after a signal, 1 if it could not start or go on, 2 for a flag that does not exist or
    a value that is not of its kind.
    """
    chosen = settings or Settings()
    if chosen.nnodes == 1 and (told := Torchrun.of(os.environ)) is not None:
        chosen = attrs.evolve(
            chosen, nnodes=told.nnodes, node_rank=told.node_rank, master_addr=chosen.master_addr or told.master_addr
        )
    set_up_logging(chosen.log_level, chosen.log_format)
    warn_of_unknown_variables()
    from app.launch import serve as serve_forever
    from app.notify import take_variables

    manager = take_variables(os.environ)
    return status_of(lambda: trio.run(serve_forever, chosen, fetch(model, chosen), manager))
