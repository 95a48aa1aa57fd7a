"""Each trouble of a machine is named, weighed, and has a remedy beside it."""

from __future__ import annotations

from typing import Any

import pytest

from app.checkup.address import Address
from app.checkup.finding import Finding, Mark, count, size
from app.checkup.machine import Place
from app.checkup.machine_findings import machine_findings, sizes_that_fit
from app.checkup.packages import Packages
from app.checkup.processors import Processors
from app.settings import Settings
from protocol.machine import Kernels
from tests.helpers.machines import CARD, GIB, PLACE, machine, probed


def findings(has: dict[str, Any], torch: dict[str, Any], settings: Settings | None = None) -> dict[str, Finding]:
    told = machine_findings(machine(**has), probed(**torch), settings or Settings())
    return {finding.name: finding for finding in told}


def test_a_machine_in_order_has_nothing_to_be_done():
    told = findings({}, {})
    assert {finding.mark for finding in told.values()} == {Mark.OK}
    assert not any(finding.remedy for finding in told.values())
    assert list(told) == [
        *("system", "packages", "extras", "cpu", "memory", "gpu", "kernels", "cache", "sockets", "address", "limits")
    ]


@pytest.mark.parametrize(
    ("name", "has", "mark", "text", "remedy"),
    [
        ("system", {"has_pidfd": False}, Mark.FAIL, "without pidfd_open", "Linux 5.3"),
        ("system", {"now": 0.0}, Mark.WARN, "its clock is years behind", "set it"),
        (
            "packages",
            {"packages": Packages(("trio>=0.35 (0.30)",), 24, ())},
            Mark.FAIL,
            "trio>=0.35 (0.30)",
            "scripts/install",
        ),
        (
            "extras",
            {"packages": Packages((), 24, ("nixl",))},
            Mark.OK,
            "not: transformers (models",
            "scripts/install NAME",
        ),
        ("cpu", {"processors": Processors("X", 8, 1.5, "avx2")}, Mark.WARN, "may use 1.5 of them", "--threads 1 "),
        ("cpu", {"processors": Processors("", 8, 8.0, "")}, Mark.WARN, "none of AVX2", "slow"),
        ("cpu", {"processors": Processors("", 1, 8.0, "avx2")}, Mark.WARN, "1 core, AVX2", "two or more"),
        ("memory", {"available_memory": GIB // 2}, Mark.WARN, "512 MiB of 24.0 GiB", "1 GiB by itself"),
        ("cache", {"cache": Place(PLACE.path, "/x: Read-only file system", 0)}, Mark.FAIL, "Read-only", "--download"),
        ("cache", {"cache": Place(PLACE.path, "", 5 * GIB)}, Mark.WARN, "5.0 GiB free", "small model only"),
        ("cache", {"cache": Place(PLACE.path, "", 1000)}, Mark.FAIL, "0 MiB free", "make room"),
        ("sockets", {"runtime": Place(PLACE.path, "/t: Permission denied", 0)}, Mark.FAIL, "/t:", "XDG_RUNTIME_DIR"),
        ("address", {"address": Address("x:1", "Address already in use", True)}, Mark.FAIL, "x:1: Address", "--port N"),
        ("flags", {"refusals": ("--ssl-certfile x: no such file",)}, Mark.FAIL, "--ssl-certfile x", ""),
        ("limits", {"descriptors": 1024}, Mark.WARN, "1024 file descriptors", "LimitNOFILE="),
        ("limits", {"descriptors": -1}, Mark.OK, "no limit to", ""),
    ],
)
def test_what_is_wrong_is_told_with_what_to_do(name, has, mark, text, remedy):
    finding = findings(has, {})[name]
    assert (finding.mark, text in finding.text, remedy in finding.remedy) == (mark, True, True), finding


def test_kernels_are_built_or_will_be_or_cannot_be():
    assert "will build them" in findings({}, {"kernels": Kernels(False, "/usr/bin/g++", "")})["kernels"].text
    cannot = findings({}, {"kernels": Kernels(False, "", "no C++ compiler is installed")})["kernels"]
    assert cannot.mark is Mark.WARN
    assert "apt install g++" in cannot.remedy


def test_gpus_are_named_with_what_is_free_and_need_no_kernels():
    told = findings({}, {"cards": [CARD], "cuda": "13.0"})
    assert told["gpu"].text == "NVIDIA H200, 139 GiB of 140 GiB free, capability 9.0 (torch 2.13.0+cpu)"
    assert "kernels" not in told


def test_a_gpu_that_was_asked_for_and_is_not_seen_is_a_failure():
    wanted = Settings(device="cuda")
    for_cpu, for_cuda = findings({}, {}, wanted)["gpu"], findings({}, {"cuda": "13.0"}, wanted)["gpu"]
    assert (for_cpu.mark, for_cuda.mark) == (Mark.FAIL, Mark.FAIL)
    assert "pytorch.org" in for_cpu.remedy
    assert "driver" in for_cuda.remedy


def test_several_gpus_need_shared_memory():
    assert "/dev/shm" not in findings({"shared_memory": 64 * 2**20}, {"cards": [CARD]})
    small = findings({"shared_memory": 64 * 2**20}, {"cards": [CARD, CARD]})["/dev/shm"]
    assert (small.mark, "--shm-size" in small.remedy) == (Mark.WARN, True)


def test_who_has_no_model_is_told_what_fits():
    told = sizes_that_fit(machine(), probed())
    assert told.text == "up to 6.4B parameters in 16 bits, 21B as 4-bit GGUF, fit into memory"
    assert "fit into one GPU" in sizes_that_fit(machine(), probed(cards=[CARD])).text


def test_sizes_are_written_as_operators_do():
    assert [size(n) for n in (5 * 2**20, GIB, 1.5 * GIB, 139 * GIB)] == ["5 MiB", "1.0 GiB", "1.5 GiB", "139 GiB"]
    assert [count(n) for n in (134_515_008, 7.6e9, 1.2e12, 999)] == ["135M", "7.6B", "1.2T", "999"]
