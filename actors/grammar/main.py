"""The grammar checker as a process: one grammar at a time, over the control pipe."""

from __future__ import annotations

import resource
import threading

import trio

from actors.control import Control
from actors.grammar.checker import GrammarChecker
from protocol.errors import GrammarError
from protocol.spec import CheckGrammar, GrammarChecked, GrammarFacts, GrammarSpec

STACK_BYTES = 4 * 2**20
"""Less than the engine's threads have (8 MiB, as shells and systemd set it): what fits here fits there."""
MEMORY_BYTES = 4 * 2**30
"""Address space of this process."""


async def run_grammar_process(spec: GrammarSpec, control: Control) -> None:
    """Check what comes until cancelled. A grammar beyond all measure ends the process: that is what it is for."""
    threading.stack_size(STACK_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    checker = GrammarChecker(spec.checkpoint)
    control.pulse.enter("idle")
    await control.ready(GrammarFacts())
    while True:
        message = await control.requests.receive()
        control.pulse.enter("check")
        await control.send(await trio.to_thread.run_sync(answer, checker, message))
        control.pulse.enter("idle")


def answer(checker: GrammarChecker, message: CheckGrammar) -> GrammarChecked:
    try:
        return GrammarChecked(checker.check(message.source))
    except GrammarError as error:
        return GrammarChecked(None, error.message)
