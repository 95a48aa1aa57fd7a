"""--otlp-traces-endpoint and what belongs to it, as far as it can be judged without OpenTelemetry. Used by
app/settings.py and app/tracing/start.py."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

from protocol.errors import BadRequestError, StartError

FLAG = "--otlp-traces-endpoint"
PATH = "/v1/traces"
GRPC_PORT = 4317
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_HTTP = "http/protobuf"
_CREDENTIALS = (
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER",
)
_LIMITS = (
    "OTEL_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_EVENT_COUNT_LIMIT",
    "OTEL_SPAN_LINK_COUNT_LIMIT",
)


def traces_url(endpoint: str) -> str:
    """Where to POST: a URL without a path is a collector's, which takes traces at /v1/traces. Raises BadRequestError.

    >>> traces_url("http://localhost:4318")
    'http://localhost:4318/v1/traces'
    """
    try:
        parts = urlsplit(endpoint)
        is_url = parts.scheme in ("http", "https", "grpc") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise BadRequestError(f"{FLAG} must be a URL such as http://localhost:4318/v1/traces, not {endpoint[:200]!r}")
    if parts.scheme == "grpc":
        raise BadRequestError(
            f"{FLAG}: traces are sent over HTTP, not gRPC: collectors take that at http://{parts.hostname}:4318{PATH}"
        )
    return urlunsplit(parts if parts.path.strip("/") else parts._replace(path=PATH))


def shown(url: str) -> str:
    """For the log: without what may be a password."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def hint(url: str) -> str:
    """What may be wrong with it, where nobody answers as we expect."""
    if urlsplit(url).port == GRPC_PORT:
        return f" ({GRPC_PORT} is mostly OTLP over gRPC; OTLP over HTTP is mostly at 4318)"
    return ""


def check_protocol(environment: Mapping[str, str]) -> None:
    """Raises StartError for what the environment asks for and we do not speak."""
    for name in _PROTOCOLS:
        if (protocol := environment.get(name)) is not None:
            if protocol != _HTTP:
                raise StartError(
                    f"{name}={protocol[:40]}: traces are sent as {_HTTP} only; unset it, or set it to that"
                )
            return


def check_limits(environment: Mapping[str, str]) -> None:
    """Raises StartError for those of spans that OpenTelemetry could not be loaded with."""
    for name in _LIMITS:
        text = environment.get(name, "").strip()
        if text and not (text.isascii() and text.isdigit() and len(text) <= 9):
            raise StartError(f"{name} must be a number from 0 to 999999999, or empty, not {text[:40]!r}")


def has_credential_provider(environment: Mapping[str, str]) -> bool:
    """Whether a package of the operator's makes the requests to the collector."""
    return any(environment.get(name) for name in _CREDENTIALS)
