"""A load on a server, and its figures."""

from __future__ import annotations

import math

import pytest
import trio

from app.api_client.call_error import NoAnswerError, RefusedError
from app.commands.bench_call import Form, Outcome
from app.commands.bench_figures import figures_of, most_at_once, percentile
from app.commands.bench_load import Load, find_server, find_vocabulary, run_load, warm_up
from app.commands.bench_plan import LoadFlags, ResultFlags
from app.commands.bench_prompts import NO_VOCABULARY, WORDS, Prompt
from app.commands.bench_report import block, file_name, remarks, result
from protocol.errors import OperationFailedError
from tests.helpers.asked_servers import DONE, event, lists_models, open_client
from tests.helpers.fake_upstreams import Talk, says_nothing

USAGE = event(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 3})


def form(**changes: object) -> Form:
    usual = {"path": "/v1/completions", "model": "m", "is_chat": False, "fields": {}, "timeout": 60.0}
    return Form(**{**usual, **changes})


def text(said: str, finish: str | None = None) -> bytes:
    return event(choices=[{"text": said, "finish_reason": finish}])


async def takes_its_time(talk: Talk) -> None:
    """Three tokens: after one second, and then each half a second."""
    await talk.head(content_type="text/event-stream")
    await trio.sleep(1.0)
    await talk.data(text("a"))
    await trio.sleep(0.5)
    await talk.data(text("b"))
    await trio.sleep(0.5)
    await talk.data(text("c", "length") + USAGE + DONE)
    await talk.end()


async def test_times_are_those_of_the_answers(autojump_clock: trio.testing.MockClock) -> None:
    load = Load()
    async with open_client(takes_its_time) as (client, server):
        await run_load(client, form(fields={"ignore_eos": True}), [Prompt([1, 2], 3)] * 2, [0.0, 4.0], None, load)
    assert server.had[0].json == {
        "model": "m",
        "prompt": [1, 2],
        "max_tokens": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    figures = figures_of(load.outcomes, load.seconds, (50, 99), {"ttft": 1100, "tpot": 400})
    assert (figures.completed, figures.failed, figures.num_good) == (2, 0, 0)
    assert (figures.total_input, figures.total_output) == (18, 6)
    assert figures.seconds == pytest.approx(6.0)
    assert figures.spreads["ttft"].mean == pytest.approx(1000)
    assert figures.spreads["tpot"].median == pytest.approx(500)
    assert figures.spreads["itl"].percentiles[99] == pytest.approx(500)
    assert figures.spreads["e2el"].std == pytest.approx(0)
    assert figures.max_concurrent_requests == 1


async def test_no_more_are_under_way_than_may_be(autojump_clock: trio.testing.MockClock) -> None:
    load = Load()
    async with open_client(takes_its_time) as (client, server):
        await run_load(client, form(), [Prompt("x", 3)] * 5, [0.0] * 5, 2, load)
        assert server.num_connections == 2
    assert load.seconds == pytest.approx(6.0)
    assert most_at_once(load.outcomes) == 2
    assert sorted(round(outcome.began) for outcome in load.outcomes) == [0, 0, 2, 2, 4]


async def test_chats_are_asked_as_chats_and_thoughts_are_tokens_too(autojump_clock: trio.testing.MockClock) -> None:
    async def thinks(talk: Talk) -> None:
        thought = event(choices=[{"delta": {"reasoning": "hm"}}])
        said = event(choices=[{"delta": {"content": "a"}, "finish_reason": "stop"}])
        await talk.events(event(choices=[{"delta": {"role": "assistant"}}]) + thought + said + DONE)

    load = Load()
    async with open_client(thinks) as (client, server):
        await run_load(client, form(is_chat=True), [Prompt("x", 3)], [0.0], None, load)
    assert server.had[0].json["messages"] == [{"role": "user", "content": "x"}]
    assert load.outcomes[0].num_output_tokens == 2
    figures = figures_of(load.outcomes, load.seconds, (), {})
    assert figures.counts_events
    assert any("told no usage" in remark for remark in remarks(figures, load, 1))


async def test_failures_are_counted_with_their_reasons(autojump_clock: trio.testing.MockClock) -> None:
    async def fails_in_many_ways(talk: Talk) -> None:
        match talk.received.json["max_tokens"]:
            case 1:
                await talk.whole({"error": {"message": "too many"}}, 429)
            case 2:
                await says_nothing(talk)
            case 3:
                await talk.events(text("a"))
            case 5:
                await talk.events(text("a") + b'data: { "error": {"message": "lost"}}\n\n' + DONE)
            case _:
                await talk.events(DONE)

    load = Load()
    prompts = [Prompt("x", number) for number in (1, 1, 2, 3, 4, 5)]
    async with open_client(fails_in_many_ways) as (client, _):
        await run_load(client, form(timeout=9.0), prompts, [0.0] * 6, None, load)
    figures = figures_of(load.outcomes, load.seconds, (99,), {})
    told = remarks(figures, load, 6)
    assert (figures.completed, figures.failed) == (0, 6)
    assert "failed 1 x: the server ended the answer: lost" in told
    assert told[0] == "failed 2 x: http://server:8000 answered 429: too many"
    assert "failed 1 x: it did not end within 9 s" in told
    assert "failed 1 x: the server broke the answer off before its end" in told
    assert "failed 1 x: the answer had no token" in told


async def test_a_load_that_is_left_tells_what_was_done(autojump_clock: trio.testing.MockClock) -> None:
    load = Load()
    async with open_client(takes_its_time) as (client, _):
        with trio.move_on_after(3.2):
            await run_load(client, form(), [Prompt("x", 3)] * 9, [0.0] * 9, 2, load)
        await trio.testing.wait_all_tasks_blocked()
    assert (len(load.outcomes), load.running) == (2, [])
    figures = figures_of(load.outcomes, load.seconds, (99,), {})
    assert remarks(figures, load, 9)[0] == "stopped: 2 of 9 requests had ended, and are what is told"


async def test_a_first_request_that_fails_ends_it_all() -> None:
    async def refuses(talk: Talk) -> None:
        await talk.whole({"error": {"message": "the prompt is too long"}}, 400)

    async with open_client(refuses) as (client, _):
        with pytest.raises(OperationFailedError, match="the prompt is too long"):
            await warm_up(client, form(), [Prompt("x", 1)])


async def test_a_server_that_comes_up_is_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    async with open_client(lists_models) as (client, server), trio.open_nursery() as nursery:
        server.is_reachable = False
        with pytest.raises(NoAnswerError):
            await find_server(client, None, 0.0)

        async def come_up() -> None:
            await trio.sleep(5)
            server.is_reachable = True

        nursery.start_soon(come_up)
        assert await find_server(client, None, 10.0) == "first"


async def test_a_server_that_tells_its_models_before_it_is_ready_is_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def loads(talk: Talk) -> None:
        if talk.received.target != "/ready":
            await lists_models(talk)
        elif trio.current_time() < 5:
            await talk.whole({"error": {"message": "Not ready: engine-0: load"}}, 503)
        else:
            await talk.whole({"ready": True})

    async with open_client(loads) as (client, _):
        with pytest.raises(RefusedError, match=r"Not ready: engine-0: load \(--ready-check-timeout-sec 60 waits"):
            await find_server(client, None, 0.0)
        assert await find_server(client, None, 10.0) == "first"
    assert 5 <= trio.current_time() < 7


async def test_a_server_without_readiness_is_ready_when_it_tells_its_models() -> None:
    async def has_no_such_route(talk: Talk) -> None:
        await (lists_models(talk) if talk.received.target == "/v1/models" else talk.whole({"detail": "no"}, 404))

    async with open_client(has_no_such_route) as (client, _):
        assert await find_server(client, None, 0.0) == "first"


async def test_a_wrong_key_is_not_waited_with(autojump_clock: trio.testing.MockClock) -> None:
    async def asks_for_a_key(talk: Talk) -> None:
        await talk.whole({"error": {"message": "Unauthorized"}}, 401)

    async with open_client(asks_for_a_key) as (client, _):
        with pytest.raises(RefusedError, match="asks for a key"):
            await find_server(client, None, 600.0)
    assert trio.current_time() < 1


async def test_ids_are_asked_of_the_server_where_it_tells_them() -> None:
    async def tokenizes(talk: Talk) -> None:
        await talk.whole({"tokens": [*range(100), 5, 6], "count": 102, "max_model_len": 9})

    async with open_client(tokenizes) as (client, server):
        found = await find_vocabulary(client, "m", takes_ids=True)
        assert found.ids == list(range(100))
        assert found.tokens_per_word == 102 / len(WORDS)
        assert (await find_vocabulary(client, "m", takes_ids=False)).ids == []
        assert server.had[0].json["add_special_tokens"] is False


@pytest.mark.parametrize("answer", [({"error": "no"}, 404), ({"tokens": "x"}, 200), ({"tokens": [1]}, 200)])
async def test_prompts_are_words_where_the_server_does_not_tell_ids(answer: tuple[object, int]) -> None:
    async def answers(talk: Talk) -> None:
        await talk.whole(*answer)

    async with open_client(answers) as (client, _):
        assert await find_vocabulary(client, "m", takes_ids=True) == NO_VOCABULARY


@pytest.mark.parametrize(("percent", "value"), [(0, 1.0), (50, 2.5), (90, 3.7), (100, 4.0)])
def test_percentiles_lie_between_ranks(percent: float, value: float) -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], percent) == pytest.approx(value)


def outcome(began: float = 0.0, **changes: object) -> Outcome:
    usual = {"first_at": began + 1, "times": [began + 1, began + 2], "num_prompt_tokens": 9, "num_tokens": 2}
    return Outcome(0.0, began, **{**usual, **changes})


def test_the_block_has_the_lines_that_vllm_s_has() -> None:
    figures = figures_of([outcome(), outcome(0.5)], 2.5, (99,), {"ttft": 1500})
    results = ResultFlags(goodput=("ttft:1500",), percentile_metrics="ttft")
    lines = block(figures, LoadFlags(request_rate=2, max_concurrency=3), results).splitlines()
    assert lines[0] == "============ Serving Benchmark Result ============"
    assert "Successful requests:                     2" in lines
    assert "Maximum request concurrency:             3" in lines
    assert "Request goodput (req/s):                 0.80" in lines
    assert "Output token throughput (tok/s):         1.60" in lines
    assert "P99 TTFT (ms):                           1000.00" in lines
    assert not any("TPOT" in line for line in lines)


def test_the_file_has_vllm_s_names_and_details_only_where_asked_for() -> None:
    figures = figures_of([outcome()], 2.5, (50, 99.9), {})
    load, flags = Load([outcome()]), LoadFlags()
    results = ResultFlags(metadata=("gpu=none",))
    told = result(figures, load, flags, results, model="owner/m", date="now")
    assert told["request_rate"] == "inf"
    assert told["gpu"] == "none"
    assert told["p99.9_ttft_ms"] == pytest.approx(1000)
    assert "errors" not in told
    assert result(figures, load, flags, ResultFlags(save_detailed=True), model="m", date="now")["itls"] == [[1.0]]
    assert file_name(LoadFlags(max_concurrency=4), results, "owner/m", "now") == "openai-infqps-concurrency4-m-now.json"


def test_nothing_that_was_answered_has_figures_too() -> None:
    figures = figures_of([], 0.0, (99,), {})
    assert "Failed requests:                         0" in block(figures, LoadFlags(), ResultFlags())


def test_a_client_that_is_busy_says_so() -> None:
    figures = figures_of([outcome()], 2.0, (99,), {})
    assert remarks(figures, Load([outcome()], cpu_seconds=0.5), 1) == []
    assert "90% of a core" in remarks(figures, Load([outcome()], cpu_seconds=1.8), 1)[0]
    assert math.isfinite(figures.request_throughput)
