"""A wall clock that jumps is told in `created`, and changes nothing else."""

from __future__ import annotations

import re

import attrs
import pytest

from app.factory import create_app
from tests.helpers.app_under_test import AppUnderTest, make_app

JUMPS = [1_800_000_000.0, 1_500_000_000.9, 0.0, -3600.0, 4e11]


@pytest.mark.parametrize("stream", [True, False])
async def test_answers_are_the_same_whatever_the_clock_says(stream: bool) -> None:
    made = make_app()
    moments = iter(JUMPS)
    services = attrs.evolve(made.services, clock=lambda: next(moments))
    under_test = AppUnderTest(create_app(services), made.engine, services)
    texts = set()
    for moment in JUMPS:
        reply = await under_test.complete(stream=stream)
        assert reply.status_code == 200
        assert f'"created":{int(moment)},' in reply.text
        texts.add(re.sub(r'"(created":|id":"cmpl-)[^,"]*', r'"\1', reply.text))
    assert len(texts) == 1, texts
    assert made.engine.num_requests == 0
