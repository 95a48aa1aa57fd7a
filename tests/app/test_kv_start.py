"""What an operator asks of KV connectors in vain is said before anything is started, in one sentence."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys

import pytest
import trio

from app import kv_start
from app.kv_config import GIBIBYTE
from app.kv_start import check_connectors, check_disk, who_does_what
from app.settings import Settings
from protocol import host_memory
from protocol.errors import StartError
from protocol.kv_directory import stranger
from tests.helpers.ports import lasting_ports


def transfer(**config: object) -> Settings:
    return Settings(kv_transfer_config=json.dumps(config))


def listening(port: int) -> socket.socket:
    """As a connector of another server does."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    return listener


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_without_connectors_there_is_nothing_to_say(caplog) -> None:
    await check_connectors(Settings())
    assert caplog.records == []


# ------------------------------------------------------------------ the address


async def test_an_address_that_is_not_ours_is_refused() -> None:
    with pytest.raises(StartError, match=r"--kv-transfer-config: kv_ip 192\.0\.2\.1 is no address of this host"):
        await check_connectors(transfer(kv_ip="192.0.2.1"))


async def test_a_name_that_has_no_address_is_refused(monkeypatch) -> None:
    async def unknown(*args: object, **more: object) -> list:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(trio.socket, "getaddrinfo", unknown)
    with pytest.raises(StartError, match=r"kv_ip nowhere\.example has no address: Name or service not known"):
        await check_connectors(transfer(kv_ip="nowhere.example"))


@pytest.mark.parametrize("taken", [0, 1])
async def test_a_port_of_any_engine_that_another_server_has_is_refused(autojump_clock, taken: int) -> None:
    (first,) = lasting_ports(1)
    settings = Settings(kv_transfer_config=json.dumps({"kv_port": first}), data_parallel_size=2)
    with listening(first + taken):
        text = (
            rf"engine-{taken} cannot be heard at 127\.0\.0\.1:{first + taken}: .* servers on one machine need a kv_port"
        )
        with pytest.raises(StartError, match=text):
            await check_connectors(settings)
    await check_connectors(settings)
    await check_connectors(settings)  # nothing is kept


async def test_a_server_that_was_killed_has_a_moment_to_leave(autojump_clock) -> None:
    (port,) = lasting_ports(1)
    with listening(port) as left:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(check_connectors, transfer(kv_port=port))
            await trio.sleep(2)
            left.close()


@pytest.mark.parametrize(
    ("config", "warns"),
    [
        ({"kv_ip": "127.0.0.1"}, True),
        ({"kv_port": "free"}, True),
        ({"kv_port": 0}, False),
        ({"kv_port": 0, "kv_ip": "127.0.0.1", "kv_connector_extra_config": {"key_file": "key"}}, False),
    ],
)
async def test_who_names_an_address_and_no_key_is_told_that_nobody_can_come(
    tmp_path, monkeypatch, caplog, config, warns
) -> None:
    (tmp_path / "key").write_text("k" * 40)
    monkeypatch.chdir(tmp_path)
    port = lasting_ports(1)[0] if config.get("kv_port") == "free" else 0
    await check_connectors(transfer(**config | {"kv_port": port}))
    assert [text.partition(":")[0] for text in warnings(caplog)] == ["--kv-transfer-config has no key_file"] * warns


# ------------------------------------------------------------------ memory


@pytest.fixture
def memory(monkeypatch) -> None:
    monkeypatch.setattr(kv_start, "total_memory", lambda: 4 * GIBIBYTE)
    monkeypatch.setattr(kv_start, "available_memory", lambda: 2 * GIBIBYTE)


async def test_more_memory_than_there_is_is_refused_naming_both(memory) -> None:
    with pytest.raises(StartError, match=r"--kv-offloading-size 5: KV connectors may take 5\.0 GiB .* has 4\.0 GiB"):
        await check_connectors(Settings(kv_offloading_size=5))
    with pytest.raises(StartError, match=r"for 6 engines: KV connectors may take 6\.0 GiB of memory"):
        await check_connectors(Settings(prefill_engines=2, decode_engines=4))


@pytest.mark.parametrize(("asked", "warns"), [(2, False), (3, True)])
async def test_more_memory_than_is_available_is_warned_of(memory, caplog, asked: int, warns: bool) -> None:
    await check_connectors(Settings(kv_offloading_size=asked))
    assert [text.endswith("of which 2.0 GiB are available now") for text in warnings(caplog)] == [True] * warns


def test_the_limit_of_a_control_group_counts(tmp_path, monkeypatch) -> None:
    machine = host_memory.total_memory()
    monkeypatch.setattr(host_memory, "GROUP", tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    assert host_memory.total_memory() >= machine
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    assert (host_memory.total_memory(), host_memory.available_memory()) == (1_000_000, 600_000)


def test_a_services_own_control_group_limits_it_and_so_do_those_around_it(tmp_path, monkeypatch):
    own = tmp_path / "groups" / "system.slice" / "trillm.service"
    own.mkdir(parents=True)
    (tmp_path / "own").write_text("1:cpu:/other\n0::/system.slice/trillm.service\n")
    monkeypatch.setattr(host_memory, "GROUP", tmp_path / "groups")
    monkeypatch.setattr(host_memory, "OWN_GROUP", tmp_path / "own")
    (own / "memory.max").write_text("1000000\n")
    (own / "memory.current").write_text("300000\n")
    assert (host_memory.total_memory(), host_memory.available_memory()) == (1_000_000, 700_000)
    (own.parent / "memory.max").write_text("900000\n")
    (own.parent / "memory.current").write_text("850000\n")
    assert (host_memory.total_memory(), host_memory.available_memory()) == (900_000, 50_000)


@pytest.mark.process
def test_memory_is_no_more_than_a_process_may_map():
    code = "from protocol.host_memory import *; print(total_memory(), available_memory())"
    done = subprocess.run(
        ["bash", "-c", f'ulimit -v 1000000; {sys.executable} -c "{code}"'], capture_output=True, text=True, timeout=60
    )
    assert max(map(int, done.stdout.split())) <= 1_024_000_000, done.stderr


# ------------------------------------------------------------------ the disk


async def test_a_directory_is_made_for_us_alone(tmp_path, caplog) -> None:
    path = tmp_path / "new" / "blocks"
    await check_disk(path)
    assert path.stat().st_mode & 0o777 == 0o700
    assert caplog.records == []


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
async def test_a_directory_that_others_write_to_is_warned_of(tmp_path, caplog, mode: int) -> None:
    path = tmp_path / "open"
    path.mkdir()
    path.chmod(mode)
    await check_disk(path)
    (text,) = warnings(caplog)
    assert f"{path} can be written to by other users (mode {mode:o})" in text


async def test_what_is_no_directory_of_connectors_is_refused(tmp_path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(StartError, match=r"has 'thesis\.tex', and nothing of a KV connector"):
        await check_disk(tmp_path)
    with pytest.raises(StartError, match="is no directory"):
        await check_disk(tmp_path / "thesis.tex")
    with pytest.raises(StartError, match="cannot be used: Not a directory"):
        await check_disk(tmp_path / "thesis.tex" / "blocks")


@pytest.mark.skipif(os.geteuid() == 0, reason="everything can be written to by root")
async def test_a_directory_that_we_cannot_write_to_is_refused(tmp_path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StartError, match="cannot be written to"):
        await check_disk(tmp_path)


async def test_a_disk_that_does_not_answer_is_not_waited_for(tmp_path, caplog, monkeypatch, autojump_clock) -> None:
    async def hang(*args: object, **more: object) -> int:
        await trio.sleep_forever()
        return 0

    monkeypatch.setattr(trio.to_thread, "run_sync", hang)
    await check_disk(tmp_path)
    assert warnings(caplog) == [f"--kv-offloading-path {tmp_path} has not answered for 5 s"]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], None),
        (["lost+found"], None),
        (["lock", "README"], None),
        (["engine-0", "notes"], None),
        ([("64" * 32), "b"], None),
        (["b", "a", "lost+found"], "a"),
        (["engine-", "engine-x"], "engine-"),
    ],
)
def test_a_directory_is_ours_by_what_is_in_it(names: list[str], found: str | None) -> None:
    assert stranger(names) == found


# ------------------------------------------------------------------ roles


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ((1, 1), "engine-0 computes prompts, engine-1 goes on with them"),
        ((2, 3), "engine-0 to engine-1 compute prompts, engine-2 to engine-4 go on with them"),
    ],
)
async def test_the_log_says_which_engines_do_what(caplog, numbers, told) -> None:
    caplog.set_level(logging.INFO)
    assert who_does_what(*numbers) == told
    await check_connectors(Settings(prefill_engines=numbers[0], decode_engines=numbers[1]))
    assert told in [record.getMessage() for record in caplog.records]
