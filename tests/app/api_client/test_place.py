"""Where a command asks, and with which key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.api_client.place import find_place
from protocol.errors import BadRequestError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000"),
        ("https://llm.example.org/team/v1", "https://llm.example.org/team"),
        ("localhost:9000", "http://localhost:9000"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("https://llm.example.org:443", "https://llm.example.org"),
    ],
)
def test_a_url_is_taken_with_and_without_v1(text: str, shown: str) -> None:
    assert str(find_place(base_url=text, environment={})) == shown


@pytest.mark.parametrize(
    "text",
    ["ftp://x", "http://", "http://x:0", "http://x:99999", "http://u:p@x", "http://x?a=1", "http://a b", "ä", ""],
)
def test_what_is_no_url_is_refused(text: str) -> None:
    with pytest.raises(BadRequestError):
        find_place(base_url=text, environment={})


def test_a_refusal_does_not_show_a_password() -> None:
    with pytest.raises(BadRequestError) as caught:
        find_place(base_url="http://user:hunter2@host", environment={})
    assert "hunter2" not in caught.value.message


def test_flags_go_before_the_environment_and_that_before_the_default() -> None:
    environment = {"OPENAI_BASE_URL": "http://elsewhere/v1", "TRILLM_PORT": "9000"}
    assert str(find_place(port=9001, environment=environment)) == "http://127.0.0.1:9001"
    assert str(find_place(environment=environment)) == "http://elsewhere"
    assert str(find_place(environment={"TRILLM_PORT": "9000"})) == "http://127.0.0.1:9000"
    assert str(find_place(environment={})) == "http://127.0.0.1:8000"


def test_a_server_on_all_addresses_is_asked_on_this_machine() -> None:
    assert find_place(environment={"TRILLM_HOST": "0.0.0.0"}).host == "127.0.0.1"
    assert find_place(host="::", environment={}).host == "::1"


def test_a_unix_socket_is_a_place() -> None:
    assert str(find_place(uds=Path("/run/trillm.sock"), environment={})) == "unix:/run/trillm.sock"
    assert find_place(environment={"TRILLM_UDS": "/run/trillm.sock"}).uds == Path("/run/trillm.sock")


@pytest.mark.parametrize(
    "flags",
    [{"base_url": "http://x", "port": 1}, {"base_url": "http://x", "uds": Path("s")}, {"uds": Path("s"), "host": "x"}],
)
def test_two_places_at_once_are_refused(flags: dict[str, object]) -> None:
    with pytest.raises(BadRequestError, match="already"):
        find_place(**flags, environment={})


def test_a_port_that_is_none_is_refused() -> None:
    with pytest.raises(BadRequestError, match="70000"):
        find_place(port=70000, environment={})


KEYS = {"TRILLM_API_KEY": "ours", "OPENAI_API_KEY": "theirs"}


def test_our_own_key_goes_before_openai_s() -> None:
    assert find_place(environment=KEYS).key == "ours"
    assert find_place(key="flag", environment=KEYS).key == "flag"
    assert find_place(environment={"OPENAI_API_KEY": "theirs"}).key == "theirs"


@pytest.mark.parametrize(
    "flags",
    [{}, {"port": 9000}, {"host": "localhost"}, {"base_url": "http://[::1]:9000"}, {"uds": Path("/run/s")}],
)
def test_a_server_of_this_machine_gets_the_key_of_our_servers(flags: dict[str, Any]) -> None:
    assert find_place(**flags, environment=KEYS).key == "ours"
    assert find_place(**flags, environment=KEYS).key_from == "TRILLM_API_KEY"


@pytest.mark.parametrize("flags", [{"base_url": "https://api.openai.com/v1"}, {"host": "10.0.0.5"}])
def test_another_machine_s_never_does(flags: dict[str, Any]) -> None:
    assert find_place(**flags, environment=KEYS).key == "theirs"
    assert find_place(**flags, environment={"VLLM_API_KEY": "ours"}).key is None
    assert find_place(**flags, key="flag", environment=KEYS).key == "flag"


def test_where_our_settings_have_a_server_listen_is_a_server_of_ours() -> None:
    assert find_place(environment={"TRILLM_HOST": "10.0.0.5", **KEYS}).key == "ours"


def test_a_place_of_openai_s_variable_gets_its_key_and_never_ours() -> None:
    environment = {"OPENAI_BASE_URL": "https://elsewhere", "TRILLM_API_KEY": "ours"}
    assert find_place(environment=environment).key is None
    assert find_place(environment={**environment, "OPENAI_API_KEY": "theirs"}).key == "theirs"


def test_the_first_of_a_list_of_keys_is_used() -> None:
    assert find_place(environment={"TRILLM_API_KEY": '["a", "b"]'}).key == "a"


def test_a_key_that_no_header_can_have_is_refused() -> None:
    with pytest.raises(BadRequestError) as caught:
        find_place(key="schlüssel", environment={})
    assert "schl" not in caught.value.message
    assert "--api-key" in caught.value.message
