"""`trillm proxy`: in front of prefill and decode servers."""

from __future__ import annotations

import os
from typing import Annotated

import trio
from cyclopts import Parameter

from app.commands.ending import status_of
from app.commands.sources import warn_of_unknown_variables
from app.logs import set_up_logging
from app.proxy.settings import ProxySettings


def proxy(*, settings: Annotated[ProxySettings | None, Parameter(name="*")] = None) -> int:
    """Serve in front of servers that compute prompts (--prefill) and servers that go on with them (--decode).

    They are servers of trillm with a --kv-transfer-config, or vLLM's. What one of them cannot do, another one does; if
    no prefill server answers, a decode server computes the prompt. Each flag can also be set by the environment
    variable that is shown with it, or in a TOML file that TRILLM_CONFIG names. Exit statuses are those of serve.
    """
    chosen = settings or ProxySettings()
    set_up_logging(chosen.log_level, chosen.log_format)
    warn_of_unknown_variables(ProxySettings)
    from app.notify import take_variables
    from app.proxy.serving import serve_proxy

    manager = take_variables(os.environ)
    return status_of(lambda: trio.run(serve_proxy, chosen, manager))
