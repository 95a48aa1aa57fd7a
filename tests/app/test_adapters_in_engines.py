"""Requests with adapters over the actors' real mains: brought when needed, brought again after a death, and nobody else
notices when one cannot be had.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from app.engine import LorasInUse, Prompt
from protocol.errors import ConflictError, OperationFailedError
from protocol.lora import LoraId, LoraRequest
from protocol.lora_files import lora_id_of
from protocol.messages import FinishReason
from protocol.operations import (
    AddLora,
    ListLoras,
    LoraState,
    Pause,
    PauseMode,
    PinLora,
    RemoveLora,
    Resume,
    Sleep,
    WakeUp,
)
from protocol.sampling import SamplingParams
from tests.app.test_going_on import kill_and_restart, tick
from tests.helpers.adapters import write_adapter
from tests.helpers.clients import collect, open_client


@pytest.fixture(scope="session")
def loras(tmp_path_factory: pytest.TempPathFactory) -> list[LoraRequest]:
    return [an_adapter(tmp_path_factory.mktemp("adapter") / "one", seed) for seed in range(3)]


def an_adapter(directory: Path, seed: int, **config: object) -> LoraRequest:
    path = write_adapter(directory, seed=seed, **config)
    return LoraRequest(f"adapter-{seed}", lora_id_of(f"adapter-{seed}", path), str(path))


def a_prompt(lora: LoraRequest | None, max_tokens: int = 30, seed: int = 1) -> Prompt:
    return Prompt([5, 6, 7], SamplingParams(max_tokens=max_tokens, seed=seed), lora=lora)


@asynccontextmanager
async def open_engine(checkpoint: Path, max_loras: int = 2, **fields: Any) -> AsyncIterator[tuple]:
    async with open_client(checkpoint, max_loras=max_loras, **fields) as opened:
        yield opened


async def one_by_one(client: Any, prompts: Sequence[Prompt]) -> list[tuple]:
    return [(await collect(client, prompt))[0] for prompt in prompts]


@pytest.mark.parametrize("plans_ahead", [False, True])
async def test_more_adapters_than_places_are_all_served_together_and_each_as_alone(
    checkpoint, autojump_clock, loras, plans_ahead
):
    async with open_engine(checkpoint, async_scheduling=plans_ahead) as (client, *_):
        prompts = [a_prompt(lora, seed=seed) for seed in range(3) for lora in (None, *loras)]
        alone = await one_by_one(client, prompts)
        assert await collect(client, *prompts) == alone
        assert len({told[0] for told in alone}) == len(prompts)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(deaths=st.lists(st.integers(0, 150), min_size=1, max_size=3))
async def test_after_any_death_the_next_engine_brings_what_it_needs(checkpoint, autojump_clock, loras, deaths):
    async with open_engine(checkpoint, max_loras=1) as (client, house, nursery):
        prompts = [a_prompt(lora) for lora in (None, *loras)]
        expected = await collect(client, *prompts)

        async def kill() -> None:
            for ticks in deaths:
                await tick(ticks)
                await kill_and_restart(house, nursery, "engine-0")
                with trio.fail_after(600):
                    while any(entry.deaths for entry in client.live()):
                        await trio.sleep(0.01)

        async with trio.open_nursery() as killing:
            killing.start_soon(kill)
            assert await collect(client, *prompts) == expected
            killing.cancel_scope.cancel()


async def test_files_that_are_gone_or_changed_end_only_those_who_need_them(checkpoint, autojump_clock, loras, tmp_path):
    gone, changed = an_adapter(tmp_path / "gone", 8), an_adapter(tmp_path / "changed", 9)
    (tmp_path / "gone" / "adapter_model.safetensors").unlink()
    write_adapter(tmp_path / "changed", seed=10)
    async with open_engine(checkpoint) as (client, *_):
        assert "no adapter_model.safetensors" in await error_of(client, gone)
        assert "have been changed since" in await error_of(client, changed)
        ended = await collect(client, *(a_prompt(lora) for lora in (gone, loras[0], None, changed)))
        assert [end for *_, end in ended] == [FinishReason.ERROR, *[FinishReason.LENGTH] * 2, FinishReason.ERROR]


async def error_of(client: Any, lora: LoraRequest) -> str:
    async with client.generate([a_prompt(lora)]) as generation:
        ((_, output),) = await generation.receive()
    return output.error


async def test_an_engine_whose_files_are_gone_goes_on_with_what_it_has(checkpoint, autojump_clock, tmp_path):
    lora = an_adapter(tmp_path / "one", 4)
    async with open_engine(checkpoint) as (client, house, nursery):
        expected = await collect(client, a_prompt(lora))
        (tmp_path / "one" / "adapter_config.json").unlink()
        assert await collect(client, a_prompt(lora)) == expected
        await kill_and_restart(house, nursery, "engine-0")
        await trio.sleep(1)
        assert "no adapter_config.json" in await error_of(client, lora)


async def test_an_adapter_that_is_kept_in_memory_is_not_read_again(checkpoint, autojump_clock, loras, tmp_path):
    lora = an_adapter(tmp_path / "one", 4)
    async with open_engine(checkpoint, max_loras=1, max_cpu_loras=2) as (client, *_):
        prompts = [a_prompt(each) for each in (lora, loras[0])]
        expected = await one_by_one(client, prompts)
        (tmp_path / "one" / "adapter_config.json").unlink()
        assert await one_by_one(client, prompts) == expected
        await one_by_one(client, [a_prompt(each) for each in loras])  # which takes its place there as well
        assert "no adapter_config.json" in await error_of(client, lora)


@pytest.mark.parametrize("held_by", [(Pause(PauseMode.KEEP), Resume()), (Sleep(2, PauseMode.KEEP), WakeUp())])
async def test_what_was_held_goes_on_with_its_adapter(checkpoint, autojump_clock, loras, held_by):
    hold, release = held_by
    async with open_engine(checkpoint, max_loras=1, dummy_step_seconds=0.01) as (client, *_):
        prompts = [a_prompt(lora) for lora in (None, *loras)]
        expected = await collect(client, *prompts)

        async def hold_and_release() -> None:
            await trio.sleep(0.1)
            await client.operate(hold)
            await trio.sleep(60)
            await client.operate(release)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold_and_release)
            assert await collect(client, *prompts) == expected
        assert trio.current_time() > 60


async def test_a_client_may_leave_while_its_adapter_is_read(checkpoint, autojump_clock, loras):
    async with open_engine(checkpoint) as (client, *_):
        async with client.generate([a_prompt(loras[0])]):
            pass
        await wait_all_tasks_blocked()
        state = await client.engine_state(0)
        assert (state.request_ids, state.stats.kv_blocks_used) == ([], 0)
        assert (await collect(client, a_prompt(loras[0])))[0][-1] is FinishReason.LENGTH


async def test_operations_say_what_an_engine_has(checkpoint, autojump_clock, loras, tmp_path):
    ids = [lora.lora_id for lora in loras]
    async with open_engine(checkpoint) as (client, *_):
        assert await client.operate(AddLora(loras[0])) == [LoraState([ids[0]], [])]
        assert await client.operate(AddLora(loras[0])) == [LoraState([ids[0]], [])]
        await client.operate(AddLora(loras[1]))
        (state,) = await client.operate(AddLora(loras[2]))  # there is no place for it: it was only read
        assert state.lora_ids == sorted(ids[:2])
        assert await client.operate(PinLora(ids[0])) == [LoraState(sorted(ids[:2]), [ids[0]])]
        await collect(client, a_prompt(loras[2]))
        assert await client.operate(ListLoras()) == [LoraState(sorted([ids[0], ids[2]]), [ids[0]])]
        with pytest.raises(ConflictError, match="not loaded"):
            await client.operate(PinLora(ids[1]))
        for lora_id in ids:
            await client.operate(RemoveLora(lora_id))
        await wait_all_tasks_blocked()
        assert await client.operate(ListLoras()) == [LoraState([], [])]


@pytest.mark.parametrize(("config", "reason"), [({"r": 99}, "rank 99"), ({"use_dora": True}, "use_dora")])
async def test_an_adapter_that_cannot_be_computed_is_found_out_when_it_is_added(
    checkpoint, autojump_clock, tmp_path, config, reason
):
    lora = an_adapter(tmp_path / "one", 5, **config)
    async with open_engine(checkpoint) as (client, *_):
        with pytest.raises(OperationFailedError, match=f"adapter-5 cannot be computed with: .*{reason}"):
            await client.operate(AddLora(lora))
        assert reason in await error_of(client, lora)


async def test_an_engine_without_adapters_says_so(checkpoint, autojump_clock, loras):
    async with open_engine(checkpoint, max_loras=0) as (client, *_):
        with pytest.raises(OperationFailedError, match="--enable-lora"):
            await client.operate(AddLora(loras[0]))
        assert "--enable-lora" in await error_of(client, loras[0])


async def test_the_names_in_use_are_known(checkpoint, autojump_clock, loras):
    async with open_engine(checkpoint, max_loras=1, dummy_step_seconds=0.01) as (client, *_):
        async with client.generate([a_prompt(loras[0], 500)]) as first, client.generate([a_prompt(loras[1], 500)]):
            await first.receive()
            assert client.loras_in_use == LorasInUse((loras[0].name,), (loras[1].name,))
        assert client.loras_in_use == LorasInUse()


async def test_a_broken_config_is_no_adapter(checkpoint, autojump_clock, tmp_path):
    path = write_adapter(tmp_path / "one")
    (path / "adapter_config.json").write_text(json.dumps([1]))
    lora = LoraRequest("broken", lora_id_of("broken", path), str(path))
    async with open_engine(checkpoint) as (client, *_):
        assert "adapter_config.json" in await error_of(client, lora)
        assert (await collect(client, a_prompt(None)))[0][-1] is FinishReason.LENGTH


def test_ids_are_never_the_one_that_means_none(tmp_path):
    assert lora_id_of("x", write_adapter(tmp_path)) != LoraId(0)
