"""What an operator may say of a proxy."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from app import cli
from app.proxy.address import read_address
from app.proxy.settings import ProxySettings
from protocol.errors import BadRequestError

ONE = {"prefill": ("http://p",), "decode": ("http://d",)}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://10.0.0.1:8000", "http://10.0.0.1:8000"),
        ("http://host", "http://host"),
        ("http://host:80/", "http://host"),
        ("https://host:443/llm/", "https://host/llm"),
        ("https://host/v1", "https://host"),
        ("http://[::1]:8000/v1/", "http://[::1]:8000"),
    ],
)
def test_addresses_are_read(text, shown):
    assert str(read_address("--decode", text)) == shown


@pytest.mark.parametrize(
    "text",
    [
        *("", "host:8000", "ftp://host", "http://", "http://:80", "http://host:99999", "http://host:x", "http://h?a"),
        *("http://user:secret@host", "http://h/#a", "http://h/a b", "http://h\n/", "http://ümlaut", "unix:/run/x"),
        *("http://host:0", "http://a..b", "http://" + "h" * 64),
    ],
)
def test_what_is_no_address_is_refused_without_its_password(text):
    with pytest.raises(BadRequestError, match="--decode") as caught:
        read_address("--decode", text)
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"prefill": ()}, "--prefill must name 1 to 256 servers, not 0"),
        ({"decode": ()}, "--decode must name"),
        ({"decode": ("http://d", "http://d/")}, "--decode names http://d more than once"),
        ({"host": "0.0.0.0"}, "--api-key"),
        ({"api_key": ("",)}, "--api-key is empty"),
        ({"upstream_api_key": " "}, "--upstream-api-key"),
        ({"upstream_api_key": "schlüssel"}, "--upstream-api-key"),
        ({"upstream_api_key": "key\n"}, "--upstream-api-key"),
        ({"prefill_timeout": 0.0}, "--prefill-timeout must be above 0"),
        ({"upstream_timeout": float("nan")}, "--upstream-timeout"),
        ({"shutdown_timeout": -1.0}, "--shutdown-timeout"),
        ({"prefill_min_bytes": -1}, "--prefill-min-bytes"),
        ({"max_body_bytes": 0}, "--max-body-bytes"),
        ({"port": 70000}, "--port"),
        ({"ssl_keyfile": "x"}, "--ssl-certfile"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_flag(wrong: dict[str, Any], named: str):
    with pytest.raises(BadRequestError, match=named):
        ProxySettings(**(ONE | wrong))


def test_flags_and_variables_name_several_servers(monkeypatch):
    monkeypatch.setenv("TRILLM_DECODE", "http://d0 http://d1")
    _, bound, _ = cli.make_app().parse_args(["proxy", "--prefill", "http://p0", "http://p1", "--port", "0"])
    settings = bound.kwargs["settings"]
    assert [str(one) for one in settings.prefill_addresses] == ["http://p0", "http://p1"]
    assert [str(one) for one in settings.decode_addresses] == ["http://d0", "http://d1"]


def test_the_proxy_loads_no_more_than_it_needs():
    code = "import sys, app.cli, app.proxy.serving\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"torch", "numpy", "mcp", "tokenizers", "zmq"} & set(loaded.stdout.split()) == set()
