"""Names for the integers and strings that identify things, so that a type checker tells them apart."""

from __future__ import annotations

from typing import NewType

RequestId = NewType("RequestId", str)
"""Made by the server for each engine request, unique in a run. What a client sends is only a label."""

EngineIndex = NewType("EngineIndex", int)
"""Which engine (data-parallel replica), from 0."""

FIRST_ENGINE = EngineIndex(0)
"""The one that there always is."""

ClientIndex = NewType("ClientIndex", int)
"""Which client of an engine, that is which API server with its output handler, from 0."""

FIRST_CLIENT = ClientIndex(0)
"""The only one as long as there is one API server."""

Epoch = NewType("Epoch", int)
"""Which incarnation of an actor. Unique in a run over all actors, and growing: a restarted actor has a higher one."""

Slot = NewType("Slot", int)
"""Which of the runner's `max_num_seqs` places a running sequence occupies."""
