"""Flags that say which server a command asks: those of chat, bench and status."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import attrs
from cyclopts import Group, Parameter

from app.api_client.place import Place, find_place

WHERE = Group("Which server", sort_key=1)


@attrs.frozen(kw_only=True)
class ServerFlags:
    base_url: Annotated[str | None, Parameter(name=("--base-url", "--url"), group=WHERE, show_default=False)] = None
    """Its URL, with or without /v1. Default: OPENAI_BASE_URL, or else http://127.0.0.1:8000."""
    host: Annotated[str | None, Parameter(group=WHERE, show_default=False)] = None
    """Its host, instead of a URL."""
    port: Annotated[int | None, Parameter(group=WHERE, show_default=False)] = None
    """Its port, instead of a URL."""
    uds: Annotated[Path | None, Parameter(group=WHERE, show_default=False)] = None
    """The Unix socket that it listens on, instead of a URL."""
    api_key: Annotated[str | None, Parameter(group=WHERE, show_default=False)] = None
    """Its key. Default: for a server of this machine TRILLM_API_KEY or VLLM_API_KEY; OPENAI_API_KEY for any. Variables
    are better than the command line."""
    ca_certs: Annotated[Path | None, Parameter(group=WHERE, show_default=False)] = None
    """Who signed its certificate, in PEM. Default: whom this machine trusts."""
    insecure: Annotated[bool, Parameter(group=WHERE, negative=(), show_default=False)] = False
    """Take any certificate."""

    def place(self) -> Place:
        """Raises BadRequestError for what is no place."""
        return find_place(
            base_url=self.base_url,
            host=self.host,
            port=self.port,
            uds=self.uds,
            key=self.api_key,
            ca_certs=self.ca_certs,
            is_insecure=self.insecure,
        )
