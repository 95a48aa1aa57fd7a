"""Whether NIXL, an extra of trillm's, is installed. Asked by KV connectors, and before by who reads their flags."""

from __future__ import annotations

import importlib.util

MODULES = ("nixl_cu13", "nixl_cu12", "nixl_rocm")
"""Its builds, any of which moves host memory. Not `nixl`, which loads torch to choose among them."""
HOW_TO_INSTALL = "NIXL is not installed: scripts/install nixl"


def nixl_module() -> str | None:
    """Which one is. Imports nothing."""
    return next((name for name in MODULES if importlib.util.find_spec(name) is not None), None)
