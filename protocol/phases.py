"""What actors say they are at while they start, in the words that people read. Told by heartbeats; app/startup.py adds
them up."""

from __future__ import annotations

START = "start"
"""A process begins, and imports what it needs to say so."""
IMPORT = "import"
"""Of torch, mostly."""
COMPILE = "compile kernels"
LAY_OUT = "lay out weights"
WAIT = "wait for weights"
"""For the weights actor: what that does meanwhile is told instead."""
LOAD = "load"
"""The weights."""
ALLOCATE = "allocate KV cache"
WARM_UP = "warm up"
"""Parts of the model are compiled and graphs recorded, on a GPU."""
