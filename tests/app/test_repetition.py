"""An answer that says the same over and over ends, if its request asked for that, with every token told."""

from __future__ import annotations

from pathlib import Path

from app.engine import Prompt
from protocol.messages import FinishReason
from protocol.sampling import RepetitionDetection, SamplingParams
from tests.helpers.clients import open_client


async def test_it_ends_with_the_reasons_that_vllm_gives(checkpoint: Path, autojump_clock: object) -> None:
    params = SamplingParams(50, 1, logit_bias={70: 100.0}, repetition=RepetitionDetection(3, 1, 4))
    async with (
        open_client(checkpoint) as (client, _, _),
        client.generate([Prompt([40, 41], params)]) as generation,
    ):
        token_ids: list[int] = []
        text = ""
        while not generation.finished:
            for _, output in await generation.receive():
                token_ids += output.token_ids
                text += output.text
    assert token_ids == [70] * 4
    assert text == text[0] * 4
    assert (output.finish_reason, output.stop_reason) == (FinishReason.REPETITION, "repetition_detected")
