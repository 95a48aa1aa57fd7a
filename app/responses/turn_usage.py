"""What the turns of a response took, together and each. Pure."""

from __future__ import annotations

from attrs import define, field

from app.schemas.responses import InputTokensDetails, OutputTokensDetails, ResponseUsage
from app.schemas.usage import Usage


@define
class TurnUsage:
    """Of the turns so far."""

    inputs: list[int] = field(factory=list)
    cached: list[int] = field(factory=list)
    outputs: list[int] = field(factory=list)
    reasoning: list[int] = field(factory=list)
    tool_outputs: list[int] = field(factory=list)
    """Of the results that a turn was the first to read."""

    def add(self, used: Usage, num_reasoning_tokens: int, num_result_tokens: int) -> None:
        self.tool_outputs.append(num_result_tokens)
        self.inputs.append(used.prompt_tokens)
        self.cached.append(used.prompt_tokens_details.cached_tokens)
        self.outputs.append(used.completion_tokens)
        self.reasoning.append(min(num_reasoning_tokens, used.completion_tokens))

    @property
    def num_in_context(self) -> int:
        """What the last turn has read and written."""
        return self.inputs[-1] + self.outputs[-1]

    @property
    def num_output_tokens(self) -> int:
        return sum(self.outputs)

    def told(self) -> ResponseUsage:
        inputs, outputs = sum(self.inputs), sum(self.outputs)
        return ResponseUsage(
            inputs,
            InputTokensDetails(sum(self.cached), 0, list(self.inputs), list(self.cached)),
            outputs,
            OutputTokensDetails(
                sum(self.reasoning), sum(self.tool_outputs), list(self.outputs), list(self.tool_outputs)
            ),
            inputs + outputs,
        )
