"""Sockets of a service manager: those that are for us and take connections are served on, others are a sentence."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from app.activation import MAX_SOCKETS, VARIABLES, num_given, open_given_sockets, shown
from app.listening import address, hypercorn_config, open_sockets
from app.notify import take_variables
from app.settings import Settings
from protocol.errors import StartError

FIRST = 300
"""Where these tests put them: 3 and the next are taken in a test's process."""


def told(number: int | str, names: str = "", pid: int | None = None) -> dict[str, str]:
    """The variables of a manager that has opened so many."""
    return {"LISTEN_FDS": str(number), "LISTEN_PID": str(pid or os.getpid()), "LISTEN_FDNAMES": names}


@contextmanager
def handed_over(*objects: socket.socket | int) -> Iterator[None]:
    """As a manager leaves them: copies at FIRST and the next numbers. They are the server's to close."""
    numbers = [one if isinstance(one, int) else one.fileno() for one in objects]
    for place, number in enumerate(numbers):
        os.dup2(number, FIRST + place)
    try:
        yield
    finally:
        os.closerange(FIRST, FIRST + len(numbers))


def refusal(*objects: socket.socket | int, names: str = "", has_key: bool = False) -> str:
    with (
        handed_over(*objects),
        pytest.raises(StartError) as raised,
        open_given_sockets(told(len(objects), names), has_key=has_key, first=FIRST),
    ):
        pass
    return raised.value.message


def test_several_of_tcp_and_unix_are_taken_and_the_manager_keeps_its_own(tmp_path: Path) -> None:
    with ExitStack() as stack:
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        six = stack.enter_context(socket.create_server(("::1", 0), family=socket.AF_INET6))
        unix = stack.enter_context(socket.create_server(str(tmp_path / "s"), family=socket.AF_UNIX))
        stack.enter_context(handed_over(tcp, six, unix))
        with open_given_sockets(told(3), has_key=False, first=FIRST) as given:
            port, port_of_six = tcp.getsockname()[1], six.getsockname()[1]
            where = [f"127.0.0.1:{port}", f"[::1]:{port_of_six}", f"unix:{tmp_path}/s"]
            assert [shown(one) for one in given] == where
            assert not any(one.get_inheritable() or one.getblocking() for one in given)
        assert all(one.fileno() == -1 for one in given)
        with socket.create_connection(tcp.getsockname()) as waiting:
            assert waiting.getpeername() == tcp.getsockname(), "it waits: the manager still listens"


def test_a_name_without_a_file_is_shown_as_systemd_writes_it() -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0trillm-test-{os.getpid()}")
        assert shown(listener) == f"unix:@trillm-test-{os.getpid()}"


@pytest.mark.parametrize("variables", [{}, told(""), told(0), told(1, pid=1), {"LISTEN_FDS": "1"}])
def test_without_sockets_for_this_process_none_are_touched(variables: dict[str, str]) -> None:
    assert num_given(variables) == 0


@pytest.mark.parametrize("number", ["-1", "three", str(MAX_SOCKETS + 1), "1 2", "9" * 5000])
def test_a_number_that_cannot_be_is_refused_by_its_limit(number: str) -> None:
    with pytest.raises(StartError, match=f"up to {MAX_SOCKETS}, and is '{number[:40]}'"):
        num_given(told(number))


def test_children_hear_nothing_of_it() -> None:
    environment = dict.fromkeys(VARIABLES, "1") | {"HOME": "/root"}
    assert take_variables(environment) == dict.fromkeys(VARIABLES, "1")
    assert environment == {"HOME": "/root"}


def test_what_is_no_socket_or_no_listening_stream_is_named_and_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        (tmp_path / "file").open() as file,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        socket.socket(socket.AF_INET) as idle,
        socket.create_server(("127.0.0.1", 0)) as fine,
    ):
        assert "is no socket" in refusal(file.fileno())
        assert f"descriptor {FIRST + 1} (http-udp) of the service manager is a socket for datagrams" in refusal(
            fine, datagrams, names="http:http-udp"
        )
        assert "does not listen" in refusal(idle)
    left, right = socket.socketpair()
    with left, right:
        assert "does not listen: the server takes its connections itself (Accept=no)" in refusal(left)


def test_whatever_it_is_called_that_is_one_line(tmp_path: Path) -> None:
    with open(tmp_path / "f", "wb") as file:
        assert "300 ('a\\nb\\x1b') of the service" in refusal(file.fileno(), names="a\nb\x1b")


def test_one_that_is_counted_and_not_there_is_named() -> None:
    with (
        pytest.raises(StartError, match=f"descriptor {FIRST} of the service manager is not open"),
        open_given_sockets(told(1), has_key=False, first=FIRST),
    ):
        pass


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_one_that_other_machines_reach_needs_a_key(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as public:
        assert f"{shown(public)}, which can be reached from other machines, and there is no --api-key" in refusal(
            public
        )
        with handed_over(public), open_given_sockets(told(1), has_key=True, first=FIRST) as given:
            assert [shown(one) for one in given] == [shown(public)]


def test_one_of_ipv6_that_is_bound_to_ipv4_s_loopback_needs_none() -> None:
    with socket.socket(socket.AF_INET6) as mapped:
        mapped.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        mapped.bind(("::ffff:127.0.0.1", 0))
        mapped.listen()
        with handed_over(mapped), open_given_sockets(told(1), has_key=False, first=FIRST) as given:
            assert len(given) == 1


def test_without_a_manager_the_flags_say_where(tmp_path: Path) -> None:
    settings = Settings(uds=tmp_path / "s")
    with open_sockets(settings, hypercorn_config(settings), {}) as sockets:
        assert address(sockets) == f"unix:{tmp_path}/s"
