"""`trillm version`: which trillm this is, and what it stands on."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, requires
from importlib.metadata import version as installed_version
from typing import Annotated

from cyclopts import Parameter

from app.commands.ending import tell


def version(
    *, everything: Annotated[bool, Parameter(name=("--all", "-v"), negative=(), show_default=False)] = False
) -> int:
    """Tell trillm's version.

        trillm version
        trillm version --all

    Parameters
    ----------
    everything
        Also those of Python, the operating system and the packages that matter: to be pasted into a report.
    """
    lines = version_lines() if everything else [f"trillm {installed_version('trillm')}"]
    return tell("\n".join(lines))


def version_lines() -> Iterator[str]:
    yield f"trillm {installed_version('trillm')}"
    yield f"Python {platform.python_version()} ({platform.python_implementation()})"
    yield (
        f"{platform.system()} {platform.release()} {platform.machine()}, {platform.libc_ver()[0] or 'libc'} "
        + (platform.libc_ver()[1])
    )
    for package in packages(requires("trillm") or []):
        try:
            yield f"{package} {installed_version(package)}"
        except PackageNotFoundError:
            continue  # an extra that is not installed


def packages(requirements: Iterable[str]) -> list[str]:
    """The names in them, each once: without those that only tests and measurements need."""
    wanted = [one for one in requirements if not re.search(r"extra == ['\"](test|bench|clients)['\"]", one)]
    return list(dict.fromkeys(name[0] for one in wanted if (name := re.match(r"[\w.-]+", one)) is not None))
