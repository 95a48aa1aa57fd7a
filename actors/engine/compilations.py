"""Requests whose grammars are being compiled, before the scheduler knows of them. Used by actors/engine/main.

Compiling may take long, so it is done off the step loop, and a grammar that fails costs only its own request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import final

import trio

from actors.engine.grammar import GrammarCompiler
from actors.engine.sequence import Constraint
from protocol.ids import ClientIndex, RequestId
from protocol.messages import EngineCoreOutput, EngineCoreRequest, FinishReason

MAX_COMPILATIONS = 1
"""Grammars at once: they compete with the compute threads."""

logger = logging.getLogger("trillm.engine")

Key = tuple[ClientIndex, RequestId]


@final
class Compilations:
    """Of one engine: it hands each request on with its compiled grammar, or an output that ends it."""

    def __init__(
        self,
        compiler: GrammarCompiler,
        add: Callable[[EngineCoreRequest, Constraint], None],
        end: Callable[[ClientIndex, EngineCoreOutput], None],
    ) -> None:
        self._compiler = compiler
        self._add = add
        self._end = end
        self._scopes: dict[Key, trio.CancelScope] = {}
        self._limiter = trio.CapacityLimiter(MAX_COMPILATIONS)

    def __contains__(self, key: Key) -> bool:
        return key in self._scopes

    def begin(self, request: EngineCoreRequest, nursery: trio.Nursery) -> None:
        # The scope exists from here on, so that an abort in the very next message finds it.
        scope = self._scopes[request.client_index, request.request_id] = trio.CancelScope()
        nursery.start_soon(self._compile, request, scope)

    def cancel(self, client_index: ClientIndex, request_id: RequestId) -> None:
        """Drop this one if it is here, without an output."""
        if scope := self._scopes.get((client_index, request_id)):
            scope.cancel()

    def cancel_client(self, client_index: ClientIndex) -> None:
        """The client is gone: drop all that is its."""
        for (owner, _), scope in self._scopes.items():
            if owner == client_index:
                scope.cancel()

    def end_all(self, error: str) -> int:
        """Every one ends with this sentence. How many."""
        for (index, request_id), scope in self._scopes.items():
            scope.cancel()
            self._end(index, EngineCoreOutput(request_id, 0, [], finish_reason=FinishReason.ABORT, error=error))
        return len(self._scopes)

    async def _compile(self, request: EngineCoreRequest, scope: trio.CancelScope) -> None:
        grammar = request.sampling_params.grammar
        assert grammar is not None, "only grammars are compiled"
        with scope:
            try:
                compiled = await trio.to_thread.run_sync(
                    self._compiler.compile, grammar, abandon_on_cancel=True, limiter=self._limiter
                )
            except Exception:  # the boundary of one request: whatever is wrong with its grammar is its own end
                logger.exception(
                    "the grammar of request %s", request.request_id, extra={"request_id": request.request_id}
                )
                error = "the grammar of this request could not be compiled"
                failed = EngineCoreOutput(request.request_id, 0, [], finish_reason=FinishReason.ERROR, error=error)
                self._end(request.client_index, failed)
            else:
                if not scope.cancel_called:  # an abort between the thread's result and our turn meets no checkpoint
                    self._add(request, compiled)
            finally:
                self._scopes.pop((request.client_index, request.request_id), None)
