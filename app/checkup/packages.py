"""Which of trillm's requirements are installed, in versions that it takes. Used by app/checkup/machine.py."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from importlib.metadata import version as installed_version

import attrs
from packaging.requirements import Requirement

EXTRAS = {
    "transformers": "models of architectures that are not built in",
    "flashinfer": "faster attention on NVIDIA GPUs",
    "nixl": "RDMA between KV connectors",
    "otel": "traces",
}
"""What each one is for."""


@attrs.frozen
class Packages:
    wrong: tuple[str, ...]
    """Requirements that are not met, each with what is there instead: "trio>=0.35 (0.30)"."""
    number: int
    """Of requirements."""
    extras: tuple[str, ...]
    """Those that are installed."""


def installed_packages(distribution_name: str = "trillm") -> Packages:
    """Raises PackageNotFoundError if trillm itself is not installed as a package."""
    wrong: list[str] = []
    number = 0
    lacking: set[str] = set()
    for line in distribution(distribution_name).requires or []:
        requirement = Requirement(line)
        there = _version(requirement.name)
        is_met = there is not None and requirement.specifier.contains(there, prereleases=True)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            number += 1
            if not is_met:
                wrong.append(f"{requirement.name}{requirement.specifier} ({there or 'missing'})")
        elif not is_met:
            lacking |= {extra for extra in EXTRAS if requirement.marker.evaluate({"extra": extra})}
    return Packages(tuple(wrong), number, tuple(extra for extra in EXTRAS if extra not in lacking))


def _version(package: str) -> str | None:
    try:
        return installed_version(package)
    except PackageNotFoundError:
        return None
