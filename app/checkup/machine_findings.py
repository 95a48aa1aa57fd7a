"""What the facts of a machine mean for a server on it. Used by app/commands/check.py; pure."""

from __future__ import annotations

from collections.abc import Iterator

from app.checkup.address_finding import address_finding
from app.checkup.finding import Finding, Mark, count, size
from app.checkup.listener import Listener
from app.checkup.machine import Machine, Place
from app.checkup.packages import EXTRAS
from app.own_command import own_command
from app.settings import Settings
from protocol.machine import Card, Kernels, Probed

LEAST_MEMORY = 2**30
ROOMY_DISK = 10 * 2**30
LEAST_DISK = 2**30
MANY_DESCRIPTORS = 4096
NCCL_MEMORY = 2**30
YEAR_2025 = 1735689600.0
FOUR_BITS = 0.6
"""Bytes of a parameter in a 4-bit GGUF file, with its scales and what is kept more exactly."""
SHARE_OF_WEIGHTS = 0.75
"""Of the memory that is free; the rest is for keys, values and everything else."""


def machine_findings(
    machine: Machine, probed: Probed | None, settings: Settings, listener: Listener | None = None
) -> Iterator[Finding]:
    """In the order in which one would look. `probed` is None where torch could not be asked, `listener` who speaks HTTP
    where the server would."""
    cards = [] if probed is None else probed.cards
    yield _system(machine)
    yield from _packages(machine)
    yield _cpu(machine)
    yield _memory(machine)
    if probed is not None:
        yield _gpu(probed, settings)
        if not cards:
            yield _kernels(probed.kernels)
    yield _place("cache", machine.cache, "--download-dir names another place", ROOMY_DISK)
    yield _place("sockets", machine.runtime, "set XDG_RUNTIME_DIR or TMPDIR", 0)
    yield address_finding(machine.address, settings, listener)
    yield from (Finding("flags", Mark.FAIL, sentence) for sentence in machine.refusals)
    yield from _limits(machine, cards)


def no_torch(reason: str) -> Finding:
    """Nothing can be computed, and of GPUs nothing is known."""
    return Finding("torch", Mark.FAIL, reason, "remove .venv: scripts/install makes it anew")


def sizes_that_fit(machine: Machine, probed: Probed, listener: Listener | None = None) -> Finding:
    """For who has not named a model."""
    free = max((card.free_bytes for card in probed.cards), default=machine.available_memory)
    room = free * SHARE_OF_WEIGHTS
    where = "one GPU" if probed.cards else "memory"
    in_16, in_4 = (count(float(f"{room / each:.2g}")) for each in (2, FOUR_BITS))
    beside = ", beside the server that runs" if listener is not None and listener.has_models else ""
    text = f"up to {in_16} parameters in 16 bits, {in_4} as 4-bit GGUF, fit into {where}{beside}"
    return Finding("models", Mark.OK, text, f"see whether one does: {own_command('check')} MODEL")


def _system(machine: Machine) -> Finding:
    text = f"Python {machine.python}, {machine.system}"
    if not machine.has_pidfd:
        return Finding("system", Mark.FAIL, f"{text}, without pidfd_open", "Linux 5.3 or newer is needed, or a sandbox "
                       "that allows pidfd_open")  # fmt: skip
    if machine.now < YEAR_2025:
        return Finding(
            "system", Mark.WARN, f"{text}; its clock is years behind", "set it: certificates are judged by it"
        )
    return Finding("system", Mark.OK, text)


def _packages(machine: Machine) -> Iterator[Finding]:
    packages = machine.packages
    if packages.wrong:
        remedy = "scripts/install brings them into .venv"
        yield Finding("packages", Mark.FAIL, f"not as required: {', '.join(packages.wrong)}", remedy)
    else:
        yield Finding("packages", Mark.OK, f"all {packages.number} as required")
    lacking = [f"{extra} ({what})" for extra, what in EXTRAS.items() if extra not in packages.extras]
    has = f"installed: {', '.join(packages.extras) or 'none'}"
    text = f"{has}; not: {', '.join(lacking)}" if lacking else has
    yield Finding("extras", Mark.OK, text, "`scripts/install NAME` adds one" if lacking else "")


def _cpu(machine: Machine) -> Finding:
    cpu = machine.processors
    cores = f"{cpu.cores} core{'s' if cpu.cores > 1 else ''}"
    text = ", ".join(part for part in (cores, cpu.model, cpu.instructions.upper().replace("_", " ")) if part)
    if cpu.quota < cpu.cores:
        remedy = f"--threads {max(1, int(cpu.quota))} keeps it from being stopped in the middle of steps"
        return Finding("cpu", Mark.WARN, f"{text}; its control group may use {cpu.quota:g} of them", remedy)
    if not cpu.instructions:
        return Finding("cpu", Mark.WARN, f"{text}; none of AVX2, AVX-512 and NEON", "computing on it will be slow")
    if cpu.cores < 2:
        return Finding("cpu", Mark.WARN, text, "two or more let the server answer while the model computes")
    return Finding("cpu", Mark.OK, text)


def _memory(machine: Machine) -> Finding:
    text = f"{size(machine.available_memory)} of {size(machine.total_memory)} are free"
    if machine.available_memory < LEAST_MEMORY:
        return Finding(
            "memory", Mark.WARN, text, "end something, or serve a small model: a server takes 1 GiB by itself"
        )
    return Finding("memory", Mark.OK, text)


def _gpu(probed: Probed, settings: Settings) -> Finding:
    if probed.cards:
        return Finding("gpu", Mark.OK, f"{'; '.join(map(_card, probed.cards))} (torch {probed.torch})")
    built = f"torch {probed.torch} is built for {'CUDA ' + probed.cuda if probed.cuda else 'CPUs only'}"
    if settings.device == "cuda":
        remedy = "install the NVIDIA driver" if probed.cuda else "install torch with CUDA (pytorch.org/get-started)"
        return Finding("gpu", Mark.FAIL, f"--device cuda, and there is none that torch sees; {built}", remedy)
    return Finding("gpu", Mark.OK, f"none that torch sees, the CPU computes ({built})")


def _card(card: Card) -> str:
    return f"{card.name}, {size(card.free_bytes)} of {size(card.total_bytes)} free, capability {card.capability}"


def _kernels(kernels: Kernels) -> Finding:
    if kernels.is_built:
        return Finding("kernels", Mark.OK, "built for this CPU, in the cache")
    if kernels.trouble:
        remedy = "install one (apt install g++): without kernels, torch computes several times slower"
        return Finding("kernels", Mark.WARN, kernels.trouble, remedy)
    return Finding("kernels", Mark.OK, f"{kernels.compiler} will build them at the first start, in half a minute")


def _place(name: str, place: Place, remedy: str, roomy: int) -> Finding:
    if place.trouble:
        return Finding(name, Mark.FAIL, f"cannot be written: {place.trouble}", remedy)
    text = f"{place.path}, {size(place.free_bytes)} free"
    if roomy and place.free_bytes < LEAST_DISK:
        return Finding(name, Mark.FAIL, text, f"make room: models are kept there, or {remedy}")
    if place.free_bytes < roomy:
        return Finding(name, Mark.WARN, text, f"that is room for a small model only; {remedy}")
    return Finding(name, Mark.OK, text)


def _limits(machine: Machine, cards: list[Card]) -> Iterator[Finding]:
    if 0 <= machine.descriptors < MANY_DESCRIPTORS:
        text = f"{machine.descriptors} file descriptors, and each connection takes one"
        yield Finding("limits", Mark.WARN, text, f"ulimit -Hn {MANY_DESCRIPTORS}, or LimitNOFILE= in a unit of systemd")
    else:
        text = "no limit to" if machine.descriptors < 0 else str(machine.descriptors)
        yield Finding("limits", Mark.OK, f"{text} file descriptors")
    if len(cards) > 1 and (machine.shared_memory or 0) < NCCL_MEMORY:
        text = f"/dev/shm has {size(machine.shared_memory or 0)}, and GPUs speak through it"
        yield Finding("/dev/shm", Mark.WARN, text, "give the container more: --shm-size 8g")
