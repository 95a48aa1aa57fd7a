"""Where UCX listens, and which transports there are by default."""

from __future__ import annotations

import subprocess
import sys

import pytest

from actors.kv.transports import choice
from actors.kv.transports.choice import chosen
from actors.kv.transports.ucx_devices import interface_of, rdma_devices, ucx_variables
from protocol.errors import StartError
from tests.helpers.kv_peers import spec


@pytest.fixture(autouse=True)
def _without_variables(monkeypatch):
    for name in ("UCX_NET_DEVICES", "UCX_TLS", "NIXL_LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def infiniband(tmp_path):
    """Two devices, of which mlx5_1 has two ports and belongs to the interface lo."""
    for device, interface in {"mlx5_0": "ib0", "mlx5_1": "lo"}.items():
        (tmp_path / device / "device" / "net" / interface).mkdir(parents=True)
        for port in "12" if device == "mlx5_1" else "1":
            (tmp_path / device / "ports" / port).mkdir(parents=True)
    return tmp_path


def test_ucx_uses_the_interface_of_the_address_and_the_rdma_ports_that_belong_to_it(infiniband) -> None:
    for host in ("127.0.0.1", "::1", "localhost", None):
        assert ucx_variables(host, infiniband)["UCX_NET_DEVICES"] == "lo,mlx5_1:1,mlx5_1:2"
    assert rdma_devices(infiniband) == ["mlx5_0", "mlx5_1"]


def test_what_the_operator_says_counts_and_an_address_of_nobody_confines_nothing(infiniband, monkeypatch) -> None:
    assert "UCX_NET_DEVICES" not in ucx_variables("0.0.0.0", infiniband)
    assert interface_of("192.0.2.7") is None
    monkeypatch.setenv("UCX_NET_DEVICES", "mlx5_0:1")
    monkeypatch.setenv("NIXL_LOG_LEVEL", "DEBUG")
    assert ucx_variables("127.0.0.1", infiniband) == {}


def test_every_address_of_an_interface_confines_ucx_to_it() -> None:
    """In a network of its own, where the system lets us have one."""
    added = ["10.9.0.1/24 dev lo", "10.9.0.2/24 dev lo", "10.9.1.3/24 dev lo label lo:x"]
    hosts = [address.partition("/")[0] for address in added]
    asking = f"from actors.kv.transports.ucx_devices import interface_of; print(*map(interface_of, {hosts}))"
    script = " && ".join([*(f"ip addr add {address}" for address in added), f'exec {sys.executable} -c "{asking}"'])
    try:
        told = subprocess.run(["unshare", "-rn", "sh", "-c", script], capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if told.returncode and "Traceback" not in told.stderr:
        pytest.skip(f"no network of our own: {told.stderr.strip()}")
    assert told.stdout.split() == ["lo", "lo", "lo"]


def test_nixl_is_taken_by_itself_only_where_there_is_a_device_for_it_and_hosts_to_reach(monkeypatch) -> None:
    monkeypatch.setattr(choice, "nixl_module", lambda: "nixl_cu12")
    monkeypatch.setattr(choice, "rdma_devices", lambda: ["mlx5_0"])
    assert chosen(spec(peer_host="10.0.0.1")) == ["shm", "nixl", "tcp"]
    assert chosen(spec()) == ["shm", "tcp"]
    monkeypatch.setattr(choice, "rdma_devices", list)
    assert chosen(spec(peer_host="10.0.0.1")) == ["shm", "tcp"]
    assert chosen(spec(transports=["nixl", "shm", "nixl"])) == ["nixl", "shm"]
    with pytest.raises(StartError):
        chosen(spec(transports=["rdma"]))
