"""What becomes of an actor that died too often while others of its kind serve: it is let alone for a while, and tried
again. Used by the supervisor for engines, and by actors/api/servers.py."""

from __future__ import annotations

import logging
from collections.abc import Callable

from actors.record import Record

REST_SECONDS = 60.0
"""How long it is let alone."""

GiveUp = Callable[[str, str | None], None]
"""Given the reason for everybody, and the detail for the operator's log."""

logger = logging.getLogger("trillm.supervisor")


def unless_others_serve(give_up: GiveUp, record: Record, do_others_serve: Callable[[], bool]) -> GiveUp:
    """Also gives up if it cannot start: then the next one cannot either."""

    def decide(reason: str, detail: str | None) -> None:
        if record.cannot_start() or not do_others_serve():
            give_up(reason, detail)
        else:
            logger.error("%s: %s; the others go on, and it is tried again in %.0f s", reason, detail, REST_SECONDS)

    return decide
