"""Where traces go, and what is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

from app.settings import Settings
from app.tracing import start
from app.tracing.endpoint import check_protocol, hint, shown, traces_url
from app.tracing.start import check_tracing, number, open_tracing
from protocol.errors import BadRequestError, StartError

URL = "http://localhost:4318/v1/traces"


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        (URL, URL),
        ("http://localhost:4318", URL),
        ("http://localhost:4318/", URL),
        ("https://otel.example/api/otlp/traces", "https://otel.example/api/otlp/traces"),
        ("http://[::1]:4318", "http://[::1]:4318/v1/traces"),
    ],
)
def test_a_collector_without_a_path_takes_traces_at_its_usual_one(endpoint: str, url: str) -> None:
    assert traces_url(endpoint) == url


@pytest.mark.parametrize("endpoint", ["localhost:4318", "4318", "ftp://a", "http://", "http://a:port", "http://[a"])
def test_what_is_no_url_is_refused_by_the_flag_s_name(endpoint: str) -> None:
    with pytest.raises(BadRequestError, match="--otlp-traces-endpoint must be a URL"):
        Settings(otlp_traces_endpoint=endpoint)


def test_grpc_is_refused_with_what_to_say_instead() -> None:
    with pytest.raises(BadRequestError, match=r"not gRPC: collectors take that at http://here:4318/v1/traces"):
        traces_url("grpc://here:4317")
    with pytest.raises(StartError, match="OTEL_EXPORTER_OTLP_PROTOCOL=grpc: traces are sent as http/protobuf only"):
        check_protocol({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    check_protocol({"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    assert "4318" in hint("http://here:4317/v1/traces")
    assert hint(URL) == ""


def test_the_log_has_no_password() -> None:
    assert shown("https://me:secret@there:1/v1/traces?key=secret") == "https://there:1/v1/traces"


def test_without_the_extra_one_sentence_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "_NEEDED", ("opentelemetry.of_another_kind",))
    with pytest.raises(StartError, match="run `scripts/install otel`"):
        check_tracing(URL, {})
    check_tracing(None, {})
    check_tracing(URL, {"OTEL_SDK_DISABLED": "true"})


def test_nobody_who_wants_no_traces_gets_any() -> None:
    assert open_tracing(None, "1", None, {}) is None
    assert open_tracing("", "1", None, {}) is None
    assert open_tracing(URL, "1", None, {"OTEL_SDK_DISABLED": "TRUE"}) is None


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", "9" * 30, "²"])
def test_a_number_of_the_environment_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(StartError, match="OTEL_BSP_MAX_QUEUE_SIZE must be a number from 1 to 1048576"):
        number({"OTEL_BSP_MAX_QUEUE_SIZE": text}, "OTEL_BSP_MAX_QUEUE_SIZE", 5)
    assert number({}, "OTEL_BSP_MAX_QUEUE_SIZE", 5) == 5


@pytest.mark.parametrize("name", ["OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"])
@pytest.mark.parametrize("text", ["none", "x", "-5", "1.5", "9" * 5000])
def test_a_limit_that_opentelemetry_cannot_be_loaded_with_is_refused_before_anything_starts(name, text) -> None:
    with pytest.raises(StartError, match=f"{name} must be a number from 0 to 999999999, or empty"):
        check_tracing(URL, {name: text})
    check_tracing(URL, {name: " "})
    check_tracing(URL, {name: "0"})
    check_tracing(None, {name: text})


def test_numbers_of_the_queue_are_checked_before_anything_starts() -> None:
    with pytest.raises(StartError, match="OTEL_BSP_SCHEDULE_DELAY must be a number"):
        check_tracing(URL, {"OTEL_BSP_SCHEDULE_DELAY": "soon"})


def test_whatever_else_keeps_opentelemetry_from_being_set_up_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER", "nobody")
    with pytest.raises(StartError, match="OpenTelemetry cannot be set up: Requested component 'nobody' not found"):
        open_tracing(URL, "1", None, {})


def test_nothing_of_opentelemetry_is_loaded_by_a_server_without_traces() -> None:
    code = (
        "import sys, app.hypercorn_command, app.cli, app.factory, app.launch, app.serving\n"
        "from app.tracing.start import check_tracing, open_tracing\n"
        "check_tracing(None); assert open_tracing(None, '1', None) is None\n"
        "print(*(name for name in sys.modules if name.startswith('opentelemetry')))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")

    assert loaded.stdout.split() == []
