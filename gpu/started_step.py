"""A step that is on its way: started by a runner, and finished when the host asks for what was sampled.

Used by gpu/runner's implementations and actors/engine/stepper.
"""

from __future__ import annotations

from typing import Protocol

import attrs

from protocol.step import StepResult


class StartedStep(Protocol):
    """What `Runner.start` gives."""

    def result(self) -> StepResult:
        """Waits for it. May be called from another thread than the runner's, and again. Raises what breaks the
        runner."""


@attrs.frozen
class FinishedStep:
    """Implements StartedStep where nothing is left to wait for."""

    outcome: StepResult

    def result(self) -> StepResult:
        return self.outcome
