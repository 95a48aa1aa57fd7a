"""A small run of each kind that scripts/chaos does: seeded, with the dummy model."""

from __future__ import annotations

import pytest

from scripts.chaos_run import endings, soak
from scripts.chaos_run.run import Course, run
from scripts.chaos_run.served import Recipe

pytestmark = pytest.mark.process


async def test_whatever_is_injected_the_clients_get_what_they_would_have_got_and_nothing_is_left(checkpoint):
    course = Course(seconds=12, seed=4, streams=16, tokens=40, every=1.2, patience=30)
    result = await run(Recipe(str(checkpoint)), course)

    assert result.complaints == []
    assert len([one for one in result.injected if one.victims]) >= 3
    assert len([outcome for outcome in result.outcomes if outcome.verdict == "equal"]) >= course.streams


DIVIDED = (
    *("--prefill-engines", "1", "--decode-engines", "1", "--num-gpu-blocks-override", "200"),
    *("--kv-transfer-config", '{"kv_port": 0, "kv_connector_extra_config": {"lease_seconds": 1}}'),
)


async def test_so_they_do_where_one_engine_goes_on_with_what_another_one_began(checkpoint):
    """And connectors are injured, too."""
    course = Course(seconds=6, seed=56, streams=12, tokens=40, every=0.8, patience=30)
    result = await run(Recipe(str(checkpoint), arguments=DIVIDED), course)

    assert result.complaints == []
    victims = {victim.rstrip("012") for one in result.injected for victim in one.victims}
    assert {"kv-", "engine-"} <= victims
    assert len([outcome for outcome in result.outcomes if outcome.verdict == "equal"]) >= course.streams


async def test_nothing_grows_with_the_number_of_requests(checkpoint):
    result = await soak.soak(Recipe(str(checkpoint), step_seconds=0.0), requests=300, seed=1)

    assert result.complaints == []


async def test_each_way_to_end_the_service_is_seen_as_promised(checkpoint):
    result = await endings.end(Recipe(str(checkpoint)), times=1)

    assert result.complaints == []
