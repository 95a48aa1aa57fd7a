"""Where a server of tools is: an address over HTTP, or a command to run. Read from --tool-server and from requests."""

from __future__ import annotations

import re
import shlex
from typing import Literal
from urllib.parse import SplitResult, urlsplit

from attrs import field, frozen

from protocol.errors import BadRequestError

MAX_URL_LENGTH = 2048
MAX_TOOL_SERVERS = 32
MAX_LABEL_LENGTH = 64
LABEL = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
STDIO = "stdio:"
HOST_AND_PORT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s/:@\[\]]+):[0-9]{1,5}")


@frozen
class UrlPrefix:
    """A URL with all that lies below its path, on that very origin."""

    scheme: str
    host: str
    port: int
    path: str
    """Without a slash at its end."""

    @classmethod
    def of(cls, url: str) -> UrlPrefix:
        """`url` as `read_url` takes it."""
        parts = urlsplit(url)
        port = (443 if parts.scheme == "https" else 80) if parts.port is None else parts.port
        return cls(parts.scheme, parts.hostname or "", port, parts.path.rstrip("/"))

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port

    def covers(self, other: UrlPrefix) -> bool:
        is_below = other.path == self.path or other.path.startswith(f"{self.path}/")
        return self.origin == other.origin and is_below


@frozen
class ToolAddress:
    """Hashable, so that sessions can be kept by it."""

    transport: Literal["sse", "http", "stdio"]
    url: str = ""
    command: tuple[str, ...] = ()
    within: tuple[UrlPrefix, ...] = ()
    """Where its server may send whoever asks it; without any, wherever it wants on its origin."""
    label: str = field(default="", eq=False)
    """What the operator calls it, if anything."""

    def may_ask(self, url: str) -> bool:
        """Where a redirect or the event of an endpoint leads."""
        if not self.within:
            return True
        try:
            asked = UrlPrefix.of(read_url(url).url)
        except BadRequestError:
            return False
        return any(each.covers(asked) for each in self.within)

    @property
    def place(self) -> str:
        """The same for all that one server is asked by, whatever the path and the query."""
        if self.transport == "stdio":
            return str(self)
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}".lower()

    @property
    def name(self) -> str:
        """For the log."""
        return self.label or str(self)

    def hidden_in(self, text: str) -> str:
        """What the connection says of its failure, for clients: they know the server by its label."""
        if self.transport == "stdio":
            return text
        prefix = UrlPrefix.of(self.url)
        for place in (f"{prefix.host}:{prefix.port}", urlsplit(self.url).netloc):
            text = text.replace(place, "the server")
        return text

    def __str__(self) -> str:
        """For logs and errors of the operator's: without what a URL's query or a command's arguments may hide."""
        if self.transport == "stdio":
            return f"{STDIO}{self.command[0]}"
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}{parts.path}"


@frozen
class ToolServer:
    """A server that the operator has named. Without a label, it is called what it calls itself."""

    address: ToolAddress
    label: str | None = None


def read_tool_servers(texts: tuple[str, ...]) -> tuple[ToolServer, ...]:
    """--tool-server: each a list with commas of `host:port` (as vLLM has it: http://host:port/sse) and URLs, or one
    `stdio:COMMAND`; `label=` before any of them names it. Raises BadRequestError."""
    entries = [
        entry.strip() for text in texts for entry in ([text] if STDIO in text else text.split(",")) if entry.strip()
    ]
    if len(entries) > MAX_TOOL_SERVERS:
        raise BadRequestError(f"--tool-server names {len(entries)} servers; at most {MAX_TOOL_SERVERS} are taken")
    servers = tuple(_read(entry) for entry in entries)
    labels = [server.label for server in servers if server.label]
    for label in labels:
        if labels.count(label) > 1:
            raise BadRequestError(f"--tool-server has the label {label!r} twice")
    return servers


def _read(entry: str) -> ToolServer:
    label: str | None = None
    before, equals, after = entry.partition("=")
    if equals and LABEL.fullmatch(before):
        label, entry = before, after
    if entry.startswith(STDIO):
        return ToolServer(ToolAddress("stdio", command=_command(entry.removeprefix(STDIO)), label=label or ""), label)
    if "://" not in entry:
        if not HOST_AND_PORT.fullmatch(entry):
            raise BadRequestError(f"--tool-server takes host:port, URLs and {STDIO}COMMAND, not {entry[:100]!r}")
        entry = f"http://{entry}/sse"
    try:
        return ToolServer(read_url(entry), label)
    except BadRequestError as error:
        raise BadRequestError(f"--tool-server: {error.message}") from error


def _command(text: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise BadRequestError(f"--tool-server {STDIO}{text[:100]}: {error}") from error
    if not words:
        raise BadRequestError(f"--tool-server {STDIO} needs a command after it, as {STDIO}mcp-server-time")
    return words


def read_url(url: str) -> ToolAddress:
    """A path that ends with /sse speaks the older transport, any other Streamable HTTP.

    Raises BadRequestError for what is no plain URL of http or https: credentials, fragments, dots and escapes that
    would make it another one to whoever reads it next are refused.
    """
    if len(url) > MAX_URL_LENGTH:
        raise BadRequestError(f"the URL has {len(url)} characters; at most {MAX_URL_LENGTH} are taken")
    parts = _split(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadRequestError(f"{url[:100]!r} is no URL of http or https")
    if "@" in parts.netloc or parts.fragment:
        raise BadRequestError("the URL may have neither a user name nor a fragment; credentials go into headers")
    segments = {segment.partition(";")[0] for segment in parts.path.split("/")}  # some servers drop what follows a ;
    if re.search(r"[^!-~]|[\\%]|//", parts.path) or {".", ".."} & segments:
        raise BadRequestError(f"the URL's path {parts.path[:100]!r} must be plain: no escapes, backslashes or dots")
    if re.search(r"[^!-~]", url):
        raise BadRequestError("the URL has characters that belong in no URL")
    return ToolAddress("sse" if parts.path.rstrip("/").endswith("/sse") else "http", url)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  raises for what is no port
    except ValueError as error:
        raise BadRequestError(f"{url[:100]!r} is no URL: {error}") from error
    return parts
