"""Whether somebody listens already where a server is to, and what that means for it."""

from __future__ import annotations

import socket
from pathlib import Path

import attrs
import pytest

from app.checkup.address import Address, find_address
from app.checkup.address_finding import address_finding
from app.checkup.finding import Mark
from app.checkup.listener import Listener
from app.own_command import own_command
from app.settings import Settings

TAKEN = Address("127.0.0.1:8000", "Address already in use", is_taken=True, free_port=8001)
TRILLM = Listener("trillm 1.2.3 with m", is_trillm=True, has_models=True)


def test_a_port_that_is_taken_is_found_out_with_the_next_that_is_free():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        found = find_address(Settings(port=port))
    assert attrs.evolve(found, free_port=None) == Address(f"127.0.0.1:{port}", "Address already in use", is_taken=True)
    assert found.free_port is None or port < found.free_port <= port + 20


def test_what_cannot_be_listened_on_is_not_taken():
    found = find_address(Settings(host="nowhere.invalid", api_key=("k",)))
    assert "not known" in found.trouble
    assert not found.is_taken
    assert find_address(Settings(port=0)) == Address("127.0.0.1:0")


def test_a_unix_socket_is_taken_while_somebody_listens(tmp_path: Path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        assert find_address(Settings(uds=path)) == Address(str(path))  # as one that was killed has left it
        listener.listen()
        assert find_address(Settings(uds=path)).is_taken
    assert path.exists()
    (tmp_path / "file").write_text("")
    assert "no socket" in find_address(Settings(uds=tmp_path / "file")).trouble
    assert "cannot be written to" in find_address(Settings(uds=tmp_path / "gone" / "s")).trouble


def test_a_server_of_ours_that_listens_is_a_warning_with_what_asks_it():
    told = address_finding(TAKEN, Settings(), TRILLM)
    assert told.mark is Mark.WARN
    assert told.text == "127.0.0.1:8000: trillm 1.2.3 with m listens there"
    assert told.remedy == f"`{own_command('status')}` asks it how it is; a second server needs --port 8001"


@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        (Settings(port=9000), " --port 9000"),
        (Settings(host="0.0.0.0", api_key=("k",)), ""),
        (Settings(host="::1"), " --host ::1"),
        (Settings(uds=Path("/run/a b")), " --uds '/run/a b'"),
        (Settings(ssl_certfile=Path("c.pem")), " --base-url https://127.0.0.1:8000"),
    ],
)
def test_it_is_asked_where_it_listens(settings, flags):
    assert address_finding(TAKEN, settings, TRILLM).remedy.startswith(f"`{own_command('status')}{flags}` asks it")


def test_another_server_that_listens_is_a_warning_and_what_is_none_a_failure():
    other = address_finding(TAKEN, Settings(), Listener("an HTTP server"))
    assert (other.mark, other.remedy) == (Mark.WARN, "end it, or use --port 8001")
    unknown = address_finding(TAKEN, Settings(), None)
    assert (unknown.mark, unknown.text) == (Mark.FAIL, "127.0.0.1:8000: Address already in use")
    assert unknown.remedy == "end who listens there, or use --port 8001"
    nowhere = address_finding(Address("x:8000", "Name or service not known"), Settings(), None)
    assert (nowhere.mark, nowhere.remedy) == (Mark.FAIL, "use another --host or --port")


def test_a_host_that_takes_no_requests_needs_no_address(tmp_path: Path):
    (tmp_path / "key").write_text("")
    follower = Settings(nnodes=2, node_rank=1, master_addr="x", tensor_parallel_size=2, node_key_file=tmp_path / "key")
    assert address_finding(TAKEN, follower, None).mark is Mark.OK
