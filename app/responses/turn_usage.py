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
    """What a turn's prompt has beyond the turn before, which is what the tools told in between."""

    def add(self, used: Usage, num_reasoning_tokens: int) -> None:
        before = self.inputs[-1] + self.outputs[-1] if self.inputs else used.prompt_tokens
        self.tool_outputs.append(max(0, used.prompt_tokens - before))
        self.inputs.append(used.prompt_tokens)
        self.cached.append(used.prompt_tokens_details.cached_tokens)
        self.outputs.append(used.completion_tokens)
        self.reasoning.append(min(num_reasoning_tokens, used.completion_tokens))

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
