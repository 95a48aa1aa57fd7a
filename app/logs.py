"""How the log is written, and what of others' is not for it. Used by the commands, hypercorn's and API servers."""

from __future__ import annotations

import logging
import sys

from app import accept_complaints


def set_up_logging(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    quieten_libraries()


def quieten_libraries() -> None:
    """What others log that is not for this log."""
    for library in ("httpx", "httpx2", "httpcore2", "hpack", "h2"):  # hpack tells each header at debug: keys, too
        logging.getLogger(library).setLevel(logging.WARNING)
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # tracebacks of what app/tools tells in a sentence
    logging.getLogger(accept_complaints.LOGGER).addFilter(accept_complaints.OneLineASecond())
