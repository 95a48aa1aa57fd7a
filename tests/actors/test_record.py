"""What an actor's record tells the supervisor to do about its end."""

from __future__ import annotations

import pytest

from tests.actors.test_engine_unit import BROKE, HUNG, OUTSIDE, ended


@pytest.mark.parametrize(
    ("end", "cannot"),
    [
        (BROKE, True),
        (BROKE | {"was_ready": True}, False),
        (OUTSIDE, False),
        (HUNG | {"fault": "it has not been heard of for 10 s"}, False),  # in its first start: it may be the machine
    ],
)
async def test_only_who_said_why_it_never_could_start_is_not_tried_again(end, cannot):
    assert ended("engine-0", **end).cannot_start() is cannot
