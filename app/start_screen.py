"""What people are told when a server has started: once it listens, and once it takes requests.

Into a pipe or a file these are lines of the log; on a terminal app/live_screen.py shows what goes on meanwhile, and a
summary after it. Used by app/serving.py and app/api_servers.py, whose main process tells.
"""

from __future__ import annotations

import logging
from typing import Protocol, final

from attrs import field, frozen

from app.api_client.place import ANY_ADDRESS
from app.own_command import own_command
from app.settings import Settings
from app.startup import Startup
from protocol.net_address import netloc

DEFAULT_ADDRESS = "http://127.0.0.1:8000"
"""Where `trillm chat` looks by itself."""
ANYWHERE = {f"://{netloc(anywhere, '')}": f"://{netloc(here, '')}" for anywhere, here in ANY_ADDRESS.items()}
"""What a server that listens on all addresses is called on this machine: not every browser finds the former, and
`trillm chat` gives our servers' keys to this machine only."""

logger = logging.getLogger("trillm")


@frozen
class Served:
    """What is there to be used, and where."""

    model: str
    url: str | None
    """As app.listening.address has it. None: hypercorn has said where."""
    root_path: str = ""
    has_key: bool = False
    has_console: bool = True
    details: str = ""
    """What the engines made of the model, in one line of a log."""
    in_short: str = ""
    """The same, as fits beside its name on a terminal."""

    @property
    def base(self) -> str | None:
        """Of every path, for a browser on this machine; None if none gets there."""
        if self.url is None or self.url.startswith("unix:"):
            return None
        url = self.url
        for anywhere, here in ANYWHERE.items():
            url = url.replace(anywhere, here)
        return f"{url}{self.root_path}"

    @property
    def is_everywhere(self) -> bool:
        """Whether it can be reached at all of this machine's addresses."""
        return self.url is not None and any(anywhere in self.url for anywhere in ANYWHERE)

    @property
    def api(self) -> str:
        return self.url or "" if self.base is None else f"{self.base}/v1"

    @property
    def console(self) -> str | None:
        return f"{self.base}/" if self.base is not None and self.has_console else None

    @property
    def key(self) -> str:
        return "an API key is needed" if self.has_key else "no API key is needed"

    @property
    def try_it(self) -> str | None:
        """A command, for copying into a shell."""
        if self.url is None:
            return None
        if self.base == DEFAULT_ADDRESS:
            return own_command("chat")
        if self.base is None:
            return own_command("chat", "--uds", self.url.removeprefix("unix:"))
        return own_command("chat", "--base-url", self.base)


def served(settings: Settings, model: str, url: str | None, details: str = "", in_short: str = "") -> Served:
    """As these settings have it; see Served for the rest."""
    has_key, has_console = bool(settings.api_key), settings.console
    return Served(model, url, settings.root_path, has_key, has_console, details, in_short)


class StartScreen(Protocol):
    logs: bool
    """Whether what goes on meanwhile is to be logged."""

    def starting(self, model: str, url: str | None) -> None:
        """It listens, and everything else is about to begin."""

    def ready(self, startup: Startup, served: Served) -> None:
        """It takes requests, and `startup` is over."""

    def stopping(self) -> None:
        """It is to stop, ready or not."""


@final
class LogScreen:
    """Lines of the log. Fulfils StartScreen."""

    logs = True

    def starting(self, model: str, url: str | None) -> None:
        logger.info("starting %s%s", model, f", listening on {url}" if url else "")

    def ready(self, startup: Startup, served: Served) -> None:
        if served.details:
            logger.info("serving %s", served.details)
        fields = {"seconds": round(startup.total, 3), "phases": {k: round(v, 3) for k, v in startup.seconds.items()}}
        logger.info("%s", ready_line(startup, served), extra=fields)

    def stopping(self) -> None:
        """That is in the log already."""


@frozen
class Start:
    """A start, and who tells of it."""

    startup: Startup = field(factory=Startup)
    screen: StartScreen = field(factory=LogScreen)


def ready_line(startup: Startup, served: Served) -> str:
    where = "" if served.url is None else f" at {served.api}"
    console = "" if served.console is None else f"; console: {served.console}"
    hint = "" if served.try_it is None else f"; try: {served.try_it}"
    took = f" ({summary})" if (summary := startup.summary()) else ""
    return f"ready in {startup.total:.1f} s: {served.model}{where}, {served.key}{console}{hint}{took}"
