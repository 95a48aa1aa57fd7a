"""What a client calls its request: a label for logs, which comes back. Nothing inside the server goes by it."""

from __future__ import annotations

import re
import secrets

HEADER = "X-Request-Id"

_LABEL = re.compile(r"[A-Za-z0-9._:/=+-]{1,128}")


def request_label(sent: str) -> str:
    """What was sent if it can stand in a log line and a header, else one of our own."""
    return sent if _LABEL.fullmatch(sent) else secrets.token_hex(16)
