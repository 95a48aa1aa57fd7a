"""What an operator may say of KV connectors, and what they are made of."""

from __future__ import annotations

import json

import pytest

from actors.connectors import spec_of
from app import kv_config
from app.kv_config import GIBIBYTE
from app.settings import Settings
from protocol.errors import BadRequestError
from protocol.ids import EngineIndex


def test_without_any_of_the_flags_there_are_no_connectors() -> None:
    assert Settings().connectors is None


def test_memory_and_disk_are_of_all_engines_together(tmp_path) -> None:
    settings = Settings(
        kv_offloading_size=4.0, kv_offloading_path=tmp_path, kv_offloading_disk_size=8.0, data_parallel_size=2
    )
    template = settings.connectors
    assert template is not None
    assert template.peer_host is None  # nobody on another host reaches them
    first, second = (spec_of(template, EngineIndex(index), 2) for index in (0, 1))
    assert [spec.window_bytes for spec in (first, second)] == [2 * GIBIBYTE] * 2
    assert [spec.disk_bytes for spec in (first, second)] == [4 * GIBIBYTE] * 2
    assert first.disk_path != second.disk_path
    assert first.engine_id != second.engine_id
    assert first.key == second.key
    assert len(first.key) == 32


def test_engines_with_roles_are_as_many_as_both_together() -> None:
    settings = Settings(prefill_engines=1, decode_engines=2)
    assert settings.num_engines == 3
    assert settings.connectors is not None
    assert settings.connectors.window_bytes == 3 * GIBIBYTE


def test_servers_that_take_over_from_each_other_share_a_key_and_listen(tmp_path) -> None:
    key = tmp_path / "key"
    key.write_text("k" * 40)
    extra = {"key_file": str(key), "allowed_peers": ["10.0.0.2:14579", "[fe80::1]:1"], "lease_seconds": 60}
    config = {"kv_connector": "TrillmConnector", "kv_ip": "10.0.0.1", "engine_id": "here"}
    settings = Settings(kv_transfer_config=json.dumps(config | {"kv_connector_extra_config": extra}))
    template = settings.connectors
    assert template is not None
    assert (template.key, template.engine_id) == (b"k" * 40, "here")
    assert (template.peer_host, template.peer_port) == ("10.0.0.1", 14579)
    assert (template.allowed_peers, template.lease_seconds) == (["10.0.0.2:14579", "[fe80::1]:1"], 60)
    assert spec_of(template, EngineIndex(1), 2).peer_port == 14580


def test_transports_are_those_there_are_and_are_installed(monkeypatch) -> None:
    def refused(*names: str) -> str:
        extra = {"kv_connector_extra_config": {"transports": names}}
        with pytest.raises(BadRequestError) as caught:
            Settings(kv_transfer_config=json.dumps(extra))
        return caught.value.message

    assert "transports has 'rdma', and there are only shm, nixl, tcp" in refused("tcp", "rdma")
    monkeypatch.setattr(kv_config, "nixl_module", lambda: None)
    assert "NIXL is not installed: scripts/install nixl" in refused("nixl")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"prefill_engines": 1}, "need each other"),
        ({"prefill_engines": 1, "decode_engines": 65}, "--decode-engines must be from 0 to 64, not 65"),
        ({"prefill_engines": 1, "decode_engines": 1, "data_parallel_size": 2}, "--data-parallel-size does, too"),
        ({"prefill_engines": 33, "decode_engines": 32}, "the sum of .* must be from 2 to 64, not 65"),
        (
            {"prefill_engines": 1, "decode_engines": 1, "kv_transfer_config": '{"kv_port": 65535}'},
            "kv_port must be from 1 to 65534, not 65535",  # the second engine's is one above it
        ),
        ({"kv_offloading_size": -1.0}, "--kv-offloading-size must be a number of GiB from 0 to 1048576, not -1.0"),
        ({"kv_offloading_size": 1e30}, r"from 0 to 1048576, not 1e\+30"),
        ({"kv_offloading_size": float("nan")}, "--kv-offloading-size must be a number of GiB"),
        ({"kv_offloading_disk_size": 1.0}, "needs a --kv-offloading-path"),
        ({"kv_offloading_size": 1.0, "enable_prefix_caching": False}, "--enable-prefix-caching"),
        ({"kv_transfer_config": "no"}, "must be a JSON object"),
        ({"kv_transfer_config": '{"kv_connector": "NixlConnector"}'}, "'NixlConnector' is not served"),
        ({"kv_transfer_config": '{"kv_parallel_size": 2}'}, "kv_parallel_size"),
        ({"kv_transfer_config": '{"kv_port": 70000}'}, "kv_port must be from 0 to 65535, not 70000"),
        ({"kv_transfer_config": '{"kv_ip": ""}'}, "kv_ip has 0 characters"),
        ({"kv_transfer_config": json.dumps({"engine_id": "e" * 300})}, "engine_id has 300 characters, .* 1 to 256"),
        ({"kv_transfer_config": '{"kv_connector_extra_config": {"lease_seconds": 0}}'}, "lease_seconds"),
        *(
            ({"kv_transfer_config": json.dumps({"kv_connector_extra_config": {"allowed_peers": [peer]}})}, "host:port")
            for peer in ("10.0.0.2", "http://10.0.0.2:14579", "fe80::1:14579", "host:", "", "host:0", "host:65536")
        ),
        *(
            ({"kv_transfer_config": json.dumps({"kv_ip": host})}, "kv_ip .* is no host's name or address")
            for host in ("10.0.0..1", "x" * 64, "ü" * 63, "a\0b")
        ),
        *(
            ({"kv_transfer_config": json.dumps({"kv_ip": host})}, "no address that other servers could reach")
            for host in ("0.0.0.0", "::")
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_in_a_sentence(flags, said) -> None:
    with pytest.raises(BadRequestError, match=said):
        Settings(**flags)


def test_a_key_file_that_has_no_possible_name_is_refused() -> None:
    config = json.dumps({"kv_connector_extra_config": {"key_file": "a\0b"}})
    with pytest.raises(BadRequestError, match="cannot be read: embedded null byte"):
        Settings(kv_transfer_config=config).connectors  # noqa: B018  raises


def test_a_key_that_can_be_guessed_is_refused(tmp_path) -> None:
    key = tmp_path / "key"
    key.write_text("short")
    config = json.dumps({"kv_connector_extra_config": {"key_file": str(key)}})
    with pytest.raises(BadRequestError, match=r"key_file .* has 5 bytes"):
        Settings(kv_transfer_config=config).connectors  # noqa: B018  raises
