"""The built kernels as Python sees them: a pool of threads that runs programs. Used by gpu/models/native_decoder.

A program is a list of operation records that is written once and run once per step by a single call. The 272 operations
of the default model's step as calls of custom operators under torch.library would cost 2 µs each (measured: 1.5 for the
dispatch, 0.6 for the call), a tenth of the step at one sequence; and each would give the interpreter lock back and wait
for it again while the event loop is busy.
"""

from __future__ import annotations

import ctypes
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gpu.kernels.build import BuildError, CacheError, built_library
from gpu.kernels.structs import Operation, Step

logger = logging.getLogger("trillm.kernels")


class KernelLibrary:
    """The loaded shared library."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))  # releases the interpreter lock during calls
        self.path = path
        self.loaded = library
        """For gpu/groups/shared_calls.py, which has further functions of it."""
        self.lanes = int(library.trillm_lanes())
        """Rows that laid-out weights are interleaved by."""
        self.open_pool = library.trillm_open_pool
        self.open_pool.argtypes, self.open_pool.restype = [ctypes.c_int], ctypes.c_void_p
        self.close_pool = library.trillm_close_pool
        self.close_pool.argtypes, self.close_pool.restype = [ctypes.c_void_p], None
        self.run = library.trillm_run
        self.run.argtypes, self.run.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p], None


def open_library(cache_directory: Path | None, options: Sequence[str] = ()) -> KernelLibrary | None:
    """Load the kernels, built first if need be; None where they cannot be had, with one warning that says why.

    Without a cache directory, or one that cannot be used, they are built for this process alone.
    """
    try:
        if cache_directory is not None:
            try:
                return KernelLibrary(built_library(cache_directory, options))
            except CacheError as error:
                logger.warning("the CPU kernels are built again at each start: %s", error)
        with tempfile.TemporaryDirectory(prefix="trillm-kernels-") as scratch:
            return KernelLibrary(built_library(Path(scratch), options))
    except (BuildError, OSError) as error:
        logger.warning("no CPU kernels, torch computes instead, which is several times slower: %s", error)
        return None


class Pool:
    """Compute threads (the caller's is one of them). Not to be used by two threads at a time."""

    def __init__(self, library: KernelLibrary, threads: int) -> None:
        self._library = library
        self._address: int | None = library.open_pool(threads)

    def run(self, program: Program, step: Step) -> None:
        """Run all operations of the program on the step's tokens."""
        assert self._address is not None, "run after close"
        self._library.run(self._address, program.address, program.count, ctypes.addressof(step))

    def close(self) -> None:
        """End the threads. Idempotent."""
        if self._address is not None:
            self._library.close_pool(self._address)
            self._address = None


class Program:
    """Operations in order."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = list(operations)
        self.count = len(self._operations)
        self._addresses = (ctypes.c_void_p * self.count)(*(ctypes.addressof(op) for op in self._operations))
        self.address = ctypes.addressof(self._addresses)
