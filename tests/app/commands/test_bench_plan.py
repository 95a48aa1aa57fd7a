"""What a load is made of."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

import pytest

from app.commands.bench_plan import LoadFlags, PromptFlags, ResultFlags
from app.commands.bench_prompts import NO_VOCABULARY, WORDS, Prompt, Vocabulary, arrivals, make_prompts
from protocol.errors import BadRequestError

IDS = Vocabulary(list(range(100, 200)), 2.0)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (LoadFlags(num_prompts=0), "--num-prompts must be from 1 to 1000000, not 0"),
        (LoadFlags(max_concurrency=0), "--max-concurrency"),
        (LoadFlags(request_rate=0), "--request-rate must be above 0, not 0"),
        (LoadFlags(request_rate=math.nan), "--request-rate"),
        (LoadFlags(burstiness=-1), "--burstiness"),
        (LoadFlags(endpoint="v1/completions"), "--endpoint must be a path"),
        (LoadFlags(extra_body="[1]"), "--extra-body must be a JSON object"),
        (PromptFlags(random_input_len=0), "--random-input-len"),
        (PromptFlags(random_range_ratio="1"), "--random-range-ratio"),
        (PromptFlags(random_range_ratio="x"), "'x'"),
        (PromptFlags(dataset_name="custom"), "needs --dataset-path"),
        (PromptFlags(custom_output_len=0), "--custom-output-len"),
        (ResultFlags(percentile_metrics="ttft,abc"), "no 'abc'"),
        (ResultFlags(metric_percentiles="50,101"), "--metric-percentiles"),
        (ResultFlags(goodput=("ttft=3",)), "--goodput"),
        (ResultFlags(metadata=("x",)), "--metadata must be KEY=VALUE"),
    ],
)
def test_what_cannot_be_done_is_told_with_flag_and_value(
    flags: LoadFlags | PromptFlags | ResultFlags, said: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        flags.check()
    assert said in caught.value.message


def test_the_backend_and_the_endpoint_say_what_is_asked_for() -> None:
    assert (LoadFlags().path, LoadFlags().is_chat) == ("/v1/completions", False)
    assert LoadFlags(backend="openai-chat").path == "/v1/chat/completions"
    assert LoadFlags(endpoint="/v1/chat/completions").is_chat


def test_made_up_prompts_are_ids_of_the_length_that_was_asked_for() -> None:
    flags = PromptFlags(random_input_len=50, random_output_len=7, random_prefix_len=10)
    prompts = make_prompts(flags, 20, IDS)
    assert {len(prompt.content) for prompt in prompts} == {60}
    assert {prompt.num_output_tokens for prompt in prompts} == {7}
    assert {tuple(prompt.content[:10]) for prompt in prompts} == {tuple(prompts[0].content[:10])}
    assert len({tuple(prompt.content) for prompt in prompts}) == 20
    assert all(100 <= token < 200 for prompt in prompts for token in prompt.content)


def test_the_same_seed_makes_the_same_prompts_and_another_one_others() -> None:
    assert make_prompts(PromptFlags(seed=3), 5, IDS) == make_prompts(PromptFlags(seed=3), 5, IDS)
    assert make_prompts(PromptFlags(seed=3), 5, IDS) != make_prompts(PromptFlags(seed=4), 5, IDS)


def test_prompts_without_ids_are_words_of_about_that_length() -> None:
    flags = PromptFlags(random_input_len=50)
    assert len(make_prompts(flags, 1, NO_VOCABULARY)[0].content.split()) == 50
    assert len(make_prompts(flags, 1, Vocabulary([], 2.0))[0].content.split()) == 25
    assert set(make_prompts(flags, 1, NO_VOCABULARY)[0].content.split()) <= set(WORDS)


def test_lengths_vary_by_their_ratios() -> None:
    flags = PromptFlags(random_input_len=100, random_output_len=100, random_range_ratio='{"input": 0.5, "output": 0.1}')
    prompts = make_prompts(flags, 300, IDS)
    lengths = {len(prompt.content) for prompt in prompts}
    asked = {prompt.num_output_tokens for prompt in prompts}
    assert 50 <= min(lengths) < 60 < 140 < max(lengths) <= 150
    assert 90 <= min(asked) < 95 < 105 < max(asked) <= 110


def test_prompts_of_a_file_are_repeated_until_there_are_enough(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a", "output_tokens": 3}\n\n{"prompt": "b", "output_tokens": 4}\n')
    flags = PromptFlags(dataset_name="custom", dataset_path=file, custom_output_len=-1, disable_shuffle=True)
    assert make_prompts(flags, 3, IDS) == [Prompt("a", 3), Prompt("b", 4), Prompt("a", 3)]


def test_questions_of_sharegpt_are_taken_with_the_length_of_their_answers(tmp_path: Path) -> None:
    file = tmp_path / "sharegpt.json"
    talks = [
        {"conversations": [{"from": "human", "value": "q" * 100}, {"from": "gpt", "value": "a" * 200}]},
        {"conversations": [{"from": "human", "value": "short"}, {"from": "gpt", "value": "a" * 200}]},
        {"conversations": [{"from": "human", "value": "q" * 9000}, {"from": "gpt", "value": "a" * 200}]},
        {"conversations": [{"from": "human", "value": "q" * 100}]},
        {"id": "empty"},
    ]
    file.write_text(json.dumps(talks))
    flags = PromptFlags(dataset_name="sharegpt", dataset_path=file)
    assert make_prompts(flags, 1, IDS) == [Prompt("q" * 100, 50)]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("custom", '{"prompt": "a"}\n{"prompt": 3}', "line 2"),
        ("custom", "", "no prompt"),
        ("sharegpt", "{}", "no ShareGPT JSON"),
        ("sharegpt", "[]", "no prompt"),
    ],
)
def test_a_file_that_cannot_be_used_is_told(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(BadRequestError, match=said):
        make_prompts(PromptFlags(dataset_name=name, dataset_path=tmp_path / "file"), 1, IDS)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadRequestError, match="No such file"):
        make_prompts(PromptFlags(dataset_name="custom", dataset_path=tmp_path / "none"), 1, IDS)


def test_requests_arrive_at_their_rate_and_as_bursty_as_asked_for() -> None:
    def gaps(burstiness: float) -> list[float]:
        times = arrivals(4000, 10.0, burstiness, 1)
        return [later - earlier for earlier, later in pairwise(times)]

    assert fmean(gaps(1.0)) == pytest.approx(0.1, rel=0.1)
    assert stdev(gaps(1.0)) == pytest.approx(0.1, rel=0.15)
    assert stdev(gaps(100.0)) < 0.02 < 0.2 < stdev(gaps(0.1))
    assert arrivals(3, math.inf, 1.0, 1) == [0.0, 0.0, 0.0]
