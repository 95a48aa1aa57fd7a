"""`trillm proxy`: in front of prefill and decode servers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import trio
from cyclopts import Parameter

from app.commands.ending import status_of
from app.commands.sources import warn_of_unknown_variables
from app.logs import set_up_logging
from app.proxy.settings import FRONT, ProxySettings

CONFIG = Parameter(group=FRONT, show_default=False)


def proxy(
    *,
    config: Annotated[Path | None, CONFIG] = None,
    settings: Annotated[ProxySettings | None, Parameter(name="*")] = None,
) -> int:
    """Serve in front of servers that compute prompts (--prefill) and servers that go on with them (--decode).

    They are servers of trillm with a --kv-transfer-config, or vLLM's. What one of them cannot do, another one does; if
    no prefill server answers, a decode server computes the prompt.

        trillm proxy --prefill http://10.0.0.1:8000 --decode http://10.0.0.2:8000 http://10.0.0.3:8000

    A flag can also be an environment variable (--upstream-timeout is TRILLM_UPSTREAM_TIMEOUT) or a key of the --config
    file. Exit statuses are those of `trillm serve`.

    Parameters
    ----------
    config
        A TOML file with settings: port = 8080. Default: the one that TRILLM_CONFIG names.
    """
    chosen = settings or ProxySettings()
    set_up_logging(chosen.log_level, chosen.log_format)
    warn_of_unknown_variables(ProxySettings)
    from app.notify import take_variables
    from app.proxy.serving import serve_proxy

    manager = take_variables(os.environ)
    return status_of(lambda: trio.run(serve_proxy, chosen, manager))
