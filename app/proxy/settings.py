"""Every setting of `trillm proxy`, made once by app/cli.py from flags, environment and file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import attrs
from cyclopts import Group, Parameter

from app.limits import Limits
from app.listed_variable import whole, words
from app.listening_settings import check_listening_settings
from app.logs import LogFormat
from app.proxy.address import UpstreamAddress, read_address
from app.tracing.endpoint import traces_url
from protocol.errors import BadRequestError

BEHIND = Group("Servers behind it", sort_key=1)
FRONT = Group("Where it listens", sort_key=2)

URLS = Parameter(group=BEHIND, consume_multiple=True, env_var_split=words, negative=())
KEYS = Parameter(group=FRONT, env_var="VLLM_API_KEY", env_var_split=whole, negative=())
TRACES = Parameter(group=FRONT, env_var="OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
MAX_SERVERS = 256
"""Of each kind."""


@attrs.frozen(kw_only=True)
class ProxySettings:
    """What an operator can say. Raises BadRequestError for what cannot be meant."""

    prefill: Annotated[tuple[str, ...], URLS] = ()
    """URLs of the servers that compute prompts, as http://10.0.0.1:8000."""
    decode: Annotated[tuple[str, ...], URLS] = ()
    """URLs of the servers that go on with them, and do all else that is asked for."""
    upstream_api_key: Annotated[str | None, Parameter(group=BEHIND)] = None
    """The key that all of them take, sent instead of the client's. Better in the environment than on the command
    line."""
    upstream_ca_certs: Annotated[Path | None, Parameter(group=BEHIND)] = None
    """Who signs the certificates of https servers, in PEM. Default: whom this machine trusts."""
    upstream_timeout: Annotated[float, Parameter(group=BEHIND)] = 3600.0
    """Seconds that a server may say nothing at all."""
    prefill_timeout: Annotated[float, Parameter(group=BEHIND)] = 60.0
    """Seconds until a prompt has to be computed, in which several prefill servers may be asked; then a decode server
    computes it."""
    prefill_min_bytes: Annotated[int, Parameter(group=BEHIND)] = 0
    """Bytes of a request below which a decode server answers it alone: a short prompt is computed sooner than handed
    over."""

    host: Annotated[str, Parameter(group=FRONT)] = "127.0.0.1"
    """Address to listen on. Any but a loopback address needs an --api-key."""
    port: Annotated[int, Parameter(group=FRONT)] = 8000
    """Port to listen on; 0 takes a free one."""
    uds: Annotated[Path | None, Parameter(group=FRONT)] = None
    """Unix socket to listen on instead, whose file only this user may open."""
    ssl_certfile: Annotated[Path | None, Parameter(group=FRONT)] = None
    """Certificate in PEM, with those between it and a root: speak TLS."""
    ssl_keyfile: Annotated[Path | None, Parameter(group=FRONT)] = None
    """Its key in PEM, not encrypted, unless it is in the same file."""
    ssl_ca_certs: Annotated[Path | None, Parameter(group=FRONT)] = None
    """Who signs the certificates of clients, in PEM."""
    ssl_cert_reqs: Annotated[int, Parameter(group=FRONT)] = 0
    """Certificates of clients: 0 asks for none, 1 checks those that are shown, 2 lets in nobody without."""
    api_key: Annotated[tuple[str, ...], KEYS] = ()
    """A key that clients may use; repeat it for more. Without an --upstream-api-key, the servers are sent it, too."""
    http2: Annotated[bool, Parameter(group=FRONT)] = True
    """Speak HTTP/2 with clients that ask for it."""
    root_path: Annotated[str, Parameter(group=FRONT)] = ""
    """Path prefix that a proxy in front of this one has not stripped, such as /llm."""
    shutdown_timeout: Annotated[float, Parameter(group=FRONT)] = 30.0
    """Seconds that running answers may take to finish after SIGTERM."""
    send_timeout: Annotated[float, Parameter(group=FRONT)] = 30.0
    """Seconds that a client may refuse to read before its connection is closed."""
    max_body_bytes: Annotated[int, Parameter(group=FRONT)] = 16 * 2**20
    """Largest request body."""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Parameter(group=FRONT)] = "info"
    """The least that is logged, to stderr."""
    log_format: Annotated[LogFormat, Parameter(group=FRONT)] = "auto"
    """"text" has date and time, "json" is one object a line. "auto" is text; short and coloured on a terminal, and with
    journald's priorities in place of times where that listens."""
    otlp_traces_endpoint: Annotated[str | None, TRACES] = None
    """Collector of OpenTelemetry traces, as http://localhost:4318/v1/traces: each request becomes a span, of which
    those of the servers behind are part. More is said by OTEL_* variables. Needs `scripts/install otel`."""
    disable_access_log: Annotated[bool, Parameter(group=FRONT, negative=())] = False
    """No line in the log for each request when it is over."""

    def __attrs_post_init__(self) -> None:
        check_listening_settings(self)
        self.prefill_addresses, self.decode_addresses  # noqa: B018  raise for what cannot be read
        if self.otlp_traces_endpoint:
            traces_url(self.otlp_traces_endpoint)
        key = self.upstream_api_key
        if key is not None and not (key.isascii() and key.isprintable() and key.strip()):  # it goes into a header
            raise BadRequestError("--upstream-api-key must have characters, of ASCII only, and be one line")
        least = {"max_body_bytes": 1, "prefill_min_bytes": 0, "shutdown_timeout": 0, "send_timeout": 0}
        for name, bound in least.items():
            value = attrs.asdict(self)[name]
            if not value >= bound:  # NaN is not, either
                raise BadRequestError(f"--{name.replace('_', '-')} must be at least {bound}, not {value}")
        for flag, seconds in (
            ("--upstream-timeout", self.upstream_timeout),
            ("--prefill-timeout", self.prefill_timeout),
        ):
            if not seconds > 0:
                raise BadRequestError(f"{flag} must be above 0, not {seconds}")

    @property
    def prefill_addresses(self) -> list[UpstreamAddress]:
        return _addresses("--prefill", self.prefill)

    @property
    def decode_addresses(self) -> list[UpstreamAddress]:
        return _addresses("--decode", self.decode)

    @property
    def limits(self) -> Limits:
        return Limits(max_body_bytes=self.max_body_bytes)


def _addresses(flag: str, urls: tuple[str, ...]) -> list[UpstreamAddress]:
    if not 1 <= len(urls) <= MAX_SERVERS:
        raise BadRequestError(f"{flag} must name 1 to {MAX_SERVERS} servers, not {len(urls)}")
    addresses = [read_address(flag, url) for url in urls]
    for address in addresses:
        if addresses.count(address) > 1:
            raise BadRequestError(f"{flag} names {address} more than once")
    return addresses
