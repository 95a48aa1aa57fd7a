"""Flags, environment and file give one frozen Settings; what cannot be served is refused in a sentence."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from app import cli
from app.checks import ranged
from app.kv_config import ExtraConfig
from app.settings import Settings
from protocol.errors import BadRequestError
from protocol.parallel import ParallelSpec
from protocol.spec import LoadFormat


def parsed(monkeypatch: pytest.MonkeyPatch, *tokens: str, **environment: str) -> tuple[str | None, Settings]:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    app = cli.make_app()
    _, bound, _ = app.parse_args(["serve", *tokens], exit_on_error=False, print_error=False)
    return (*bound.args, None)[0], bound.kwargs.get("settings") or Settings()


def test_without_anything_it_is_the_default_model_on_the_loopback_address(monkeypatch):
    model, settings = parsed(monkeypatch)

    assert model is None
    assert (settings.host, settings.port, settings.api_key) == ("127.0.0.1", 8000, ())


def test_flags_have_vllm_s_names(monkeypatch):
    model, settings = parsed(
        monkeypatch, "some/model", "--port", "1", "--api-key", "a", "--api-key", "b", "--served-model-name", "x", "y",
        "--max-model-len", "512", "--max-num-seqs", "3", "--scheduling-policy", "priority", "--load-format", "dummy",
    )  # fmt: skip

    assert model == "some/model"
    assert settings.api_key == ("a", "b")
    assert settings.served_model_name == ("x", "y")
    engine = settings.house(Path("/m")).engine
    assert (engine.max_model_len, engine.max_num_seqs, engine.scheduling_policy) == (512, 3, "priority")
    assert engine.load_format is LoadFormat.DUMMY


@pytest.mark.parametrize("flag", ["-dp", "--data-parallel-size"])
def test_each_engine_has_a_batch_of_its_own(monkeypatch, flag):
    _, settings = parsed(monkeypatch, flag, "3", "--max-num-seqs", "10", "--max-num-queued-reqs", "5")

    assert settings.house(Path("/m")).num_engines == 3
    assert settings.max_live_requests == 35


def test_an_engine_s_ranks_are_called_as_vllm_calls_them(monkeypatch):
    _, settings = parsed(monkeypatch, "-tp", "3", "-pp", "2", "--enable-expert-parallel")
    assert settings.house(Path("/m")).engine.parallel == ParallelSpec(3, 2, experts=True)
    _, settings = parsed(monkeypatch, "--tensor-parallel-size", "2", "--pipeline-parallel-size", "4")
    assert settings.house(Path("/m")).engine.parallel == ParallelSpec(2, 4)


def test_the_scheduler_s_flags_have_both_senses(monkeypatch):
    _, settings = parsed(monkeypatch, "--no-enable-prefix-caching", "--async-scheduling")
    engine = settings.house(Path("/m")).engine
    assert (engine.enable_prefix_caching, engine.async_scheduling) == (False, True)
    assert not parsed(monkeypatch, "--no-async-scheduling")[1].async_scheduling
    assert Settings().async_scheduling is None


@pytest.mark.parametrize(
    ("flags", "directory"), [((), "/cache/profiles"), (("--profiler-dir", "/elsewhere"), "/elsewhere")]
)
def test_profiles_lie_in_the_cache_unless_they_are_wanted_elsewhere(monkeypatch, flags, directory):
    _, settings = parsed(monkeypatch, "--download-dir", "/cache", *flags)
    assert settings.house(Path("/m")).engine.profiler_directory == directory


def test_the_environment_gives_what_no_flag_says(monkeypatch):
    model, settings = parsed(
        monkeypatch, "--port", "2", TRILLM_PORT="1", TRILLM_MODEL="m", TRILLM_MAX_NUM_SEQS="7", VLLM_API_KEY="k"
    )

    assert (model, settings.port, settings.max_num_seqs, settings.api_key) == ("m", 2, 7, ("k",))


def test_origins_are_a_list_in_json_as_a_flag_and_as_a_variable(monkeypatch):
    told = '["https://a.example", "http://b"]'
    for settings in (
        parsed(monkeypatch, "--allowed-origins", told)[1],
        parsed(monkeypatch, TRILLM_ALLOWED_ORIGINS=told)[1],
    ):
        assert settings.cors.origins == ("https://a.example", "http://b")
        assert settings.cors.headers == ("*",)


@pytest.mark.parametrize("name", ["TRILLM_API_KEY", "VLLM_API_KEY"])
@pytest.mark.parametrize(
    ("told", "keys"), [("k", ("k",)), ("a b", ("a b",)), ('["a b", "c"]', ("a b", "c")), ("[k", ("[k",)), ("", ())]
)
def test_a_variable_gives_one_key_or_a_list_in_json(monkeypatch, name, told, keys):
    assert parsed(monkeypatch, **{name: told})[1].api_key == keys


@pytest.mark.parametrize(
    ("told", "servers"),
    [
        ("notes=stdio:python notes.py --deep", ("notes=stdio:python notes.py --deep",)),
        ('["notes=stdio:python notes.py", "a=b:1"]', ("notes=stdio:python notes.py", "a=b:1")),
        ("notes=stdio:python notes.py\n\n a=b:1,[::1]:2\n", ("notes=stdio:python notes.py", "a=b:1,[::1]:2")),
        ("[::1]:2", ("[::1]:2",)),
        ("[]", ()),
    ],
)
def test_a_variable_gives_servers_of_tools_by_the_line_or_as_a_list_in_json(monkeypatch, told, servers):
    assert parsed(monkeypatch, TRILLM_TOOL_SERVER=told)[1].tool_server == servers


def test_every_flag_that_takes_several_takes_a_list_in_json_from_the_environment(monkeypatch, tmp_path):
    directories = [tmp_path / "a b", tmp_path / "c"]
    for directory in directories:
        directory.mkdir()

    _, settings = parsed(
        monkeypatch,
        TRILLM_SERVED_MODEL_NAME='["a b", "c"]',
        TRILLM_ALLOWED_MCP_SERVERS='["https://a.example", "https://b.example"]',
        TRILLM_LORA_MODULES='["x=/a b", "y=/c"]',
        TRILLM_ALLOWED_LORA_DIRS=json.dumps([str(directory) for directory in directories]),
    )

    assert settings.served_model_name == ("a b", "c")
    assert settings.allowed_mcp_servers == ("https://a.example", "https://b.example")
    assert settings.lora_modules == ("x=/a b", "y=/c")
    assert settings.allowed_lora_dirs == tuple(directories)


def test_words_of_a_variable_are_several_values_unless_they_are_an_object(monkeypatch):
    adapter = '{"name": "x", "path": "/a b"}'
    assert parsed(monkeypatch, TRILLM_SERVED_MODEL_NAME="a b")[1].served_model_name == ("a", "b")
    assert parsed(monkeypatch, TRILLM_LORA_MODULES=adapter)[1].lora_modules == (adapter,)


def test_a_broken_list_is_refused_without_telling_keys(monkeypatch):
    with pytest.raises(BadRequestError, match="no list of texts in JSON") as raised:
        parsed(monkeypatch, VLLM_API_KEY='["secret", 1]')
    assert "secret" not in raised.value.message


def test_a_file_gives_what_neither_flag_nor_environment_says(monkeypatch, tmp_path):
    (tmp_path / "trillm.toml").write_text('port = 3\nmax-num-seqs = 5\nserved-model-name = ["a", "b"]\n')
    _, settings = parsed(monkeypatch, TRILLM_CONFIG=str(tmp_path / "trillm.toml"), TRILLM_PORT="4")

    assert (settings.port, settings.max_num_seqs, settings.served_model_name) == (4, 5, ("a", "b"))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"host": "0.0.0.0"}, "--host 0.0.0.0 can be reached from other machines and there is no --api-key"),
        ({"api_key": ("",)}, "--api-key is empty"),
        ({"port": 65536}, "--port must be from 0 to 65535, not 65536"),
        ({"max_num_seqs": 0}, "--max-num-seqs must be at least 1, not 0"),
        ({"data_parallel_size": 0}, "--data-parallel-size must be from 1 to 64, not 0"),
        ({"api_server_count": 0}, "--api-server-count must be from 1 to 64, not 0"),
        ({"api_server_count": 65}, "--api-server-count must be from 1 to 64, not 65"),
        ({"data_parallel_size": 65}, "--data-parallel-size must be from 1 to 64, not 65"),
        ({"tensor_parallel_size": 0}, "--tensor-parallel-size must be from 1 to 64, not 0"),
        ({"pipeline_parallel_size": 65}, "--pipeline-parallel-size must be from 1 to 64, not 65"),
        ({"tensor_parallel_size": 9, "pipeline_parallel_size": 8}, "ask for 72 processes, and 64 is the limit"),
        ({"tensor_parallel_size": 8, "data_parallel_size": 9}, "ask for 72 processes, and 64 is the limit"),
        ({"shutdown_timeout": -1}, "--shutdown-timeout must not be negative"),
        ({"shutdown_timeout": math.nan}, "--shutdown-timeout must not be negative, and is nan"),
        ({"send_timeout": math.nan}, "--send-timeout must not be negative, and is nan"),
        ({"request_timeout": -1.0}, "--request-timeout must not be negative"),
        ({"max_queue_time": math.nan}, "--max-queue-time must not be negative, and is nan"),
        ({"dummy_step_seconds": math.nan}, "--dummy-step-seconds must not be negative, and is nan"),
        ({"sse_keep_alive_interval": math.nan}, "--sse-keep-alive-interval must not be negative, and is nan"),
        ({"max_log_len": -1}, "--max-log-len must not be negative, and is -1"),
        ({"max_stored_responses": 0}, "--max-stored-responses must be at least 1, not 0"),
        ({"responses_ttl": math.nan}, "--responses-ttl must be at least 1, not nan"),
        ({"root_path": "llm"}, "--root-path must begin with a slash and not end with one, as /llm: 'llm'"),
        ({"root_path": "/"}, "--root-path must begin with a slash"),
        ({"root_path": "/llm/"}, "--root-path must begin with a slash"),
        ({"allowed_origins": ("https://a/b",)}, "--allowed-origins must be origins in lower case and without a path"),
        ({"allowed_origins": ("*",), "allow_credentials": True}, "--allow-credentials needs --allowed-origins by name"),
    ],
)
def test_what_cannot_be_served_is_refused_naming_flag_and_value(fields, text):
    with pytest.raises(BadRequestError) as caught:
        Settings(**fields)

    assert text in caught.value.message


def test_other_machines_may_come_in_with_a_key():
    assert Settings(host="0.0.0.0", api_key=("k",)).host == "0.0.0.0"


def test_a_path_prefix_may_have_several_parts():
    assert Settings(root_path="/a/b-c").root_path == "/a/b-c"


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.0, None)])
def test_nan_is_in_no_range(low, high):
    with pytest.raises(BadRequestError, match="not nan"):
        ranged("top_p", math.nan, low, high, 1.0)


def test_no_request_timeout_is_no_limit():
    assert Settings().limits.request_seconds == math.inf
    assert Settings(request_timeout=5).limits.request_seconds == 5


@pytest.mark.parametrize(
    ("flags", "stands_by"),
    [((), True), (("--no-engine-standby",), False), (("--load-format", "dummy"), False)],
)
def test_a_process_stands_by_for_engines_that_take_long_to_import(monkeypatch, flags, stands_by):
    _, settings = parsed(monkeypatch, *flags)
    assert settings.house(Path("/m")).has_standby == stands_by


def test_allowed_directories_are_looked_up_once(tmp_path):
    allowed, moved = tmp_path / "allowed", tmp_path / "moved"
    allowed.mkdir()
    settings = Settings(enable_lora=True, allowed_lora_dirs=(allowed,))
    allowed.rename(moved)
    allowed.symlink_to(tmp_path)

    assert settings.adapter_policy.directories == (allowed,)
    assert settings.house(tmp_path).engine.max_loras == settings.max_loras


def test_a_role_for_answers_is_a_short_word(monkeypatch):
    assert parsed(monkeypatch, "--response-role", "pirate")[1].response_role == "pirate"
    assert Settings().response_role == "assistant"
    for role, told in (("", "has 0"), ("x" * 65, "1 to 64 characters, and has 65")):
        with pytest.raises(BadRequestError, match=f"--response-role.*{told}"):
            Settings(response_role=role)


def test_no_flag_of_kv_connectors_tells_two_defaults(capsys):
    cli.make_app()(["serve", "--help"], result_action="return_value")
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    sizes = told[told.index("--kv-offloading-size") : told.index("--prefill-engines INT")]

    assert "Default: 16." in sizes
    assert "[default:" not in sizes
    for name in ExtraConfig.__struct_fields__:
        assert f'"{name}"' in told
